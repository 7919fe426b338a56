"""What Keras promises on one device holds on several, or is refused with the reason."""

import numpy as np
import pytest
from scenarios import basics, jit
from scenarios import keras as scenarios
from support import oracle, stacks

compiled_predict = stacks.needs_keras(
    "3.12", "XLA compiles `predict` for all local devices at once"
)

STEP, SCALE, ITERATIONS = 1, 0, 1  # the step that overflows; columns of the record


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


@pytest.fixture(scope="module")
def step_by_step(group):
    """A fit of one step after the other."""
    return group.run(scenarios.fit_in_executions, steps_per_execution=1)[0]


def assert_fits_alike(group, expected, options):
    """The same up to roundings, which two epochs of Adam spread."""
    for actual in group.run(scenarios.fit_in_executions, **options):
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@on("1x2", pytest.param("2x1", marks=pytest.mark.slow))
class TestWaysToRun:
    @pytest.mark.feature("`run_eagerly=True`")
    def test_eagerly(self, group, step_by_step):
        assert_fits_alike(group, step_by_step, {"steps_per_execution": 1, "run_eagerly": True})

    @pytest.mark.feature("`jit_compile=True` with synchronized `BatchNormalization`: without XLA")
    @compiled_predict
    def test_jit_compile_trains_without_xla(self, group, step_by_step):
        assert_fits_alike(group, step_by_step, {"steps_per_execution": 1, "jit_compile": True})


@on("1x2", "2x1", "2x2")
class TestKeras:
    @pytest.mark.feature("`LossScaleOptimizer`, `mixed_float16`: one replica overflows")
    @pytest.mark.parametrize("poisoned", [0, -1])
    def test_one_overflow_is_skipped_by_all(self, group, poisoned):
        results = group.run(
            scenarios.overflow_on_one_replica, poisoned_replica=poisoned % group.replicas
        )
        for actual in results:
            steps = actual["steps"]
            before, after = steps[STEP - 1], steps[STEP]
            assert after[SCALE] == before[SCALE] / 2
            # Keras 2 counts steps that are left out.
            assert after[ITERATIONS] == before[ITERATIONS] + stacks.IS_KERAS_2
            np.testing.assert_array_equal(after[2:], before[2:], "no weight changes")
            assert (steps[STEP + 1] != after)[2:].all(), "and the next step changes all"
            assert np.isfinite(steps).all()
            for name in actual:
                np.testing.assert_array_equal(actual[name], results[0][name])

    def test_without_overflow_no_step_is_skipped(self, group):
        for actual in group.run(scenarios.overflow_on_one_replica, poisoned_replica=None):
            assert (actual["steps"][:, SCALE] == actual["steps"][0, SCALE]).all()
            assert actual["steps"][:, ITERATIONS].tolist() == [1, 2, 3, 4]

    @pytest.mark.feature("`mixed_float16`, `mixed_bfloat16`")
    @pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
    def test_mixed_precision_learns(self, group, policy):
        results = group.run(scenarios.fit_in_precision, policy=policy)
        for actual in results:
            assert actual["loss"][-1] < 0.8 * actual["loss"][0]
            np.testing.assert_array_equal(actual["weight0"], results[0]["weight0"])

    @pytest.mark.feature("dropout differs per replica, reproducible from the seed")
    def test_dropout_differs_and_is_reproducible(self, group):
        first, again, other = (
            np.concatenate(
                [r["masks"] for r in group.run(scenarios.dropout_masks, seed=seed)], axis=1
            )
            for seed in (7, 7, 8)
        )
        np.testing.assert_array_equal(first, again)
        flat = np.concatenate([*first, *other])  # calls and seeds x replicas
        assert len({mask.tobytes() for mask in flat}) == 4 * group.replicas
        assert (0.25 < flat.mean(axis=1)).all() and (flat.mean(axis=1) < 0.75).all()

    @pytest.mark.feature("shuffling NumPy data: one permutation on all workers")
    @pytest.mark.parametrize("seeds", ["none", "same", "different"])
    def test_every_row_is_seen_once_in_an_epoch(self, group, seeds):
        results = group.run(scenarios.shuffled_rows, seeds=seeds)
        epochs = np.concatenate([actual["epochs"] for actual in results], axis=1)
        for rows in epochs:
            assert sorted(rows) == list(range(96))
            assert list(rows) != list(range(96))
        # With a seed of the user's Keras repeats one permutation in every epoch and fit; Keras 2
        # repeats those of a fit.
        is_users = seeds == "same" or (seeds == "different" and group.workers == 1)
        repeated = 2 if stacks.IS_KERAS_2 else 1
        assert len({rows.tobytes() for rows in epochs}) == (repeated if is_users else 4)

    @pytest.mark.feature("`BatchNormalization`, not synchronized: statistics averaged")
    def test_statistics_are_averaged_before_evaluation(self, group):
        results = group.run(scenarios.local_batch_normalization)
        # The last batch, eight rows for each replica.
        rows = results[0]["x"][-8 * group.replicas :].reshape(group.replicas, 8, -1)
        expected = {
            "moving_mean": rows.mean(axis=(0, 1)),
            "moving_variance": rows.var(axis=1).mean(axis=0),
        }
        for actual in results:
            for name, value in expected.items():
                for local in range(group.devices):
                    copy = actual[f"{name}.{local}"]
                    np.testing.assert_allclose(copy, value, rtol=1e-5, atol=1e-6)
                    np.testing.assert_array_equal(copy, results[0][f"{name}.0"])
            np.testing.assert_array_equal(actual["frozen before"], actual["frozen after"])
            np.testing.assert_allclose(actual["val_loss"], actual["val_loss alone"], rtol=1e-5)
            np.testing.assert_allclose(
                actual["predicted"], actual["predicted alone"], rtol=1e-5, atol=1e-6
            )

    @pytest.mark.feature("`steps_per_execution` > 1")
    @pytest.mark.parametrize("steps", [3, 10])
    def test_steps_per_execution_changes_nothing(self, group, step_by_step, steps):
        assert_fits_alike(group, step_by_step, {"steps_per_execution": steps})

    @pytest.mark.feature("learning-rate schedules, `ReduceLROnPlateau`")
    def test_learning_rates(self, group):
        for actual in group.run(scenarios.learning_rates):
            # After a step Keras 3 shows the rate of the next one, Keras 2 that of this one.
            first = 0.1 if stacks.IS_KERAS_2 else 0.05
            np.testing.assert_allclose(actual["scheduled"], first * 0.5 ** np.arange(4), rtol=1e-6)
            np.testing.assert_allclose(actual["plateau"], [0.1, 0.1, 0.05, 0.025])

    def test_what_is_not_finite_on_all_replicas_stays(self, group):
        numbers = np.arange(group.replicas)
        expected = [numbers.mean(), np.float32(0.1), -np.inf, np.inf, numbers[1:].mean()]
        for actual in group.run(scenarios.average_known_statistics):
            for copy in actual["copies"]:
                np.testing.assert_array_equal(copy, np.float32(expected))
            assert actual["total"] == 1, "what is summed when it is assigned is left alone"

    @pytest.mark.feature("sparse gradients")
    def test_sparse_gradients_equal_dense_ones(self, group):
        dense = np.zeros([group.replicas, 6, 2])
        for replica, (indices, rows) in enumerate(scenarios.known_slices(group.replicas)):
            np.add.at(dense[replica], indices, np.reshape(rows, [-1, 2]))
        expected = -oracle.adasum(dense.reshape(group.replicas, -1)).reshape(6, 2)
        for actual in group.run(scenarios.sparse_gradients):
            np.testing.assert_allclose(actual["table"], expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.feature("a gradient that is None on one replica: an error on all workers")
    def test_a_gradient_that_one_replica_lacks_is_refused_on_all_workers(self, group):
        for actual in group.run(scenarios.gradient_missing_on_one_replica):
            assert "pass zeros instead of None" in str(actual["message"])
        group.run(basics.reduce_gradients, rule="adasum")

    def test_nothing_is_traced_after_the_first_epoch(self, group):
        for actual in group.run(scenarios.count_traces):
            assert actual["counts"][0] == actual["counts"][1]


@pytest.mark.keras3_only("Keras 2 trains without XLA, and says so")
@on("1x2", "2x1", "2x2")
class TestXla:
    def assert_equal(self, results, expected):
        """Up to roundings: XLA multiplies and adds in another order."""
        for actual, other in zip(results, expected, strict=True):
            numbers = [name for name, value in actual.items() if value.dtype.kind == "f"]
            assert len(numbers) > 15
            for name in numbers:
                np.testing.assert_allclose(
                    actual[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name
                )

    @pytest.mark.feature("`jit_compile=True`: forward and backward pass, evaluation, `predict`")
    @pytest.mark.parametrize(
        "options",
        [
            {"steps_per_execution": 2},
            {"optimizer": "accumulating", "rule": "mean"},
            {"optimizer": "scaled"},
            {"optimizer": "delta of 2"},
        ],
        ids=lambda options: "-".join(map(str, options.values())),
    )
    @compiled_predict
    def test_compiles_and_changes_nothing(self, group, options):
        compiled = group.run(jit.fit, jit_compile=True, **options)
        others = group.run(jit.fit, jit_compile=False, **options)
        self.assert_equal(compiled, others)
        for actual, other in zip(compiled, others, strict=True):
            assert actual["training compiled"].tolist() == [True]
            assert any(actual["the rest compiled"])
            assert actual["warnings"].tolist() == []
            assert not any([*other["training compiled"], *other["the rest compiled"]])
            if options.get("optimizer") != "accumulating":
                assert sum(actual["are sparse"]) == sum(other["are sparse"]) == 1

    @pytest.mark.feature("`jit_compile=True` with a custom `train_step`: a warning, without XLA")
    @pytest.mark.parametrize("jit_compile", [True, False])
    def test_a_step_of_its_own_is_not_compiled(self, group, jit_compile):
        results = group.run(jit.fit, kind="own step", jit_compile=jit_compile)
        for actual in results:
            assert len(actual["warnings"]) == jit_compile
            for warning in actual["warnings"]:
                assert "the train_step of" in warning and "the model's own" in warning
            assert actual["training compiled"].tolist() == [False]
            assert any(actual["the rest compiled"]) == jit_compile

    def test_a_collective_in_the_forward_pass_is_not_compiled(self, group):
        results = group.run(jit.fit, kind="synchronized", jit_compile=True)
        for actual in results:
            (warning,) = actual["warnings"]
            assert "reduce over the replicas" in warning and "jit_compile=False" in warning
            assert any(actual["the rest compiled"])

    def test_each_replica_has_the_gradient_of_its_rows(self, group):
        # Replica r's loss is the mean of (w_r - y)² over its four rows, from w = 0.
        y = np.arange(1, 4 * group.replicas + 1).reshape(group.replicas, 4)
        expected = 2 * y.mean(axis=1, keepdims=True)
        for actual in group.run(basics.train_on_disjoint_features, jit_compile=True):
            np.testing.assert_allclose(actual["weight0"], expected, rtol=1e-6)

    def test_dropout_differs_and_is_reproducible(self, group):
        for actual in group.run(jit.dropped_units):
            first, again = actual["masks"]
            np.testing.assert_array_equal(first, again)
            assert len({mask.tobytes() for mask in first}) == group.replicas
            assert (0.25 < first.mean(axis=1)).all() and (first.mean(axis=1) < 0.75).all()


@on("2x1", "3x1")
class TestUnevenData:
    @pytest.mark.feature("datasets of unequal length: an error on all workers")
    def test_datasets_of_different_cardinality_are_refused_on_all_workers(self, group):
        results = group.run(scenarios.uneven_datasets, unknown=False)
        others = ", ".join(map(str, range(1, len(results))))
        for actual in results:
            message = f"worker 0: 3; worker{'s' if len(results) > 2 else ''} {others}: 1"
            assert message in str(actual["message"])
        # No collective had started: the group still works.
        group.run(basics.reduce_gradients, rule="adasum")

    @pytest.mark.feature("datasets of unknown cardinality")
    def test_unknown_cardinality_works(self, group):
        for actual in group.run(scenarios.uneven_datasets, unknown=True):
            assert str(actual["message"]) == "" and np.isfinite(actual["loss"]).all()
