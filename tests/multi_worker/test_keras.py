"""What Keras promises on one device holds on several, or is refused with the reason."""

import numpy as np
import pytest
from scenarios import basics, jit, on
from scenarios import keras as scenarios
from support import keras_versions

compiled_predict = keras_versions.needs_keras(
    "3.12", "XLA compiles `predict` for all local devices at once"
)


@pytest.fixture(scope="module")
def step_by_step(group):
    """A fit of one step after the other."""
    return group.run(scenarios.fit_in_executions)[0]


def assert_fits_alike(group, expected, options):
    """The same up to roundings, which two epochs of Adam spread."""
    for actual in group.run(scenarios.fit_in_executions, **options):
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@on("1x2", pytest.param("2x1", marks=pytest.mark.slow))
class TestWaysToRun:
    @pytest.mark.slow
    def test_eagerly(self, group, step_by_step):
        assert_fits_alike(group, step_by_step, {"run_eagerly": True})

    @compiled_predict
    def test_jit_compile_trains_without_xla(self, group, step_by_step):
        assert_fits_alike(group, step_by_step, {"jit_compile": True})


@on("1x2", "2x2")
class TestKeras:
    @pytest.mark.parametrize("poisoned", [0, -1])
    def test_one_overflow_is_skipped_by_all(self, group, poisoned):
        results = group.run(
            scenarios.overflow_on_one_replica, poisoned_replica=poisoned % group.replicas
        )
        # Keras 2 counts steps that are left out.
        iterations = [1, 2, 3, 4] if keras_versions.IS_KERAS_2 else [1, 1, 2, 3]
        for actual in results:
            steps = actual["steps"]
            assert steps[:, 0].tolist() == [64, 32, 32, 32], "the scale of the loss"
            assert steps[:, 1].tolist() == iterations
            weights = steps[:, 2:]
            np.testing.assert_array_equal(weights[1], weights[0], "no weight changes")
            assert (weights[2] != weights[1]).all(), "and the next step changes all"
            assert np.isfinite(weights).all()
            for name in actual:
                np.testing.assert_array_equal(actual[name], results[0][name])

    @pytest.mark.parametrize(
        "jit_compile",
        [False, pytest.param(True, marks=pytest.mark.keras3_only("Keras 2 trains without XLA"))],
    )
    def test_dropout_differs_and_is_reproducible(self, group, jit_compile):
        for actual in group.run(scenarios.dropped_units, jit_compile=jit_compile):
            first, again = actual["masks"]
            np.testing.assert_array_equal(first, again)
            assert len({mask.tobytes() for mask in first}) == group.replicas
            assert (0.25 < first.mean(axis=1)).all() and (first.mean(axis=1) < 0.75).all()

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
        repeated = 2 if keras_versions.IS_KERAS_2 else 1
        assert len({rows.tobytes() for rows in epochs}) == (repeated if is_users else 4)

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

    @pytest.mark.parametrize("steps", [3, 10])
    @pytest.mark.slow
    def test_steps_per_execution_changes_nothing(self, group, step_by_step, steps):
        assert_fits_alike(group, step_by_step, {"steps_per_execution": steps})

    def test_a_gradient_that_one_replica_lacks_is_refused_on_all_workers(self, group):
        for actual in group.run(scenarios.gradient_missing_on_one_replica):
            assert "pass zeros instead of None" in str(actual["message"])
        group.run(basics.reduce_gradients, rule="adasum")

    def test_nothing_is_traced_after_the_first_epoch(self, group):
        for actual in group.run(scenarios.count_traces):
            assert actual["counts"][0] == actual["counts"][1]


def is_loss_of_masked_rows(name):
    return name.startswith("history") and name.endswith(("loss", "scores_loss"))


@pytest.mark.keras3_only("Keras 2 trains without XLA, and says so")
@on("1x2", "2x2")
class TestXla:
    @pytest.mark.parametrize(
        "options",
        [
            {"steps_per_execution": 2},
            {"optimizer": "accumulating", "rule": "mean", "kind": "unmasked"},
            {"optimizer": "scaled"},
            {"optimizer": "delta of 2"},
        ],
        ids=lambda options: "-".join(map(str, options.values())),
    )
    @compiled_predict
    @pytest.mark.slow
    def test_compiles_and_changes_nothing(self, group, options):
        compiled = group.run(jit.fit, jit_compile=True, **options)
        others = group.run(jit.fit, jit_compile=False, **options)
        for actual, other in zip(compiled, others, strict=True):
            numbers = [name for name, value in actual.items() if value.dtype.kind == "f"]
            assert len(numbers) > 15
            if options.get("kind") != "unmasked":  # each replica's mean over its unmasked rows
                numbers = [name for name in numbers if not is_loss_of_masked_rows(name)]
            for name in numbers:  # XLA multiplies and adds in another order
                np.testing.assert_allclose(
                    actual[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name
                )
            assert actual["training compiled"].tolist() == [True]
            assert any(actual["the rest compiled"])
            assert actual["warnings"].tolist() == []
            assert not any([*other["training compiled"], *other["the rest compiled"]])
            if options.get("optimizer") != "accumulating":
                assert sum(actual["are sparse"]) == sum(other["are sparse"]) == 1

    @pytest.mark.slow
    def test_a_loss_of_masked_rows_under_the_mean_is_not_compiled(self, group):
        """Its divisor is the number of rows of all replicas that are not masked."""
        compiled = group.run(jit.fit, rule="mean", jit_compile=True)
        others = group.run(jit.fit, rule="mean", jit_compile=False)
        for actual, other in zip(compiled, others, strict=True):
            assert actual["warnings"].size
            assert all("masked rows under the rule mean" in text for text in actual["warnings"])
            for name in (name for name, value in actual.items() if value.dtype.kind == "f"):
                np.testing.assert_allclose(
                    actual[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name
                )

    @pytest.mark.parametrize(
        ("kind", "texts"),
        [
            ("own step", ["the train_step of", "the model's own"]),
            ("synchronized", ["reduce over the replicas", "jit_compile=False"]),
        ],
    )
    @pytest.mark.slow
    def test_what_is_trained_without_xla_is_named(self, group, kind, texts):
        for actual in group.run(jit.fit, kind=kind, jit_compile=True):
            (warning,) = actual["warnings"]
            assert all(text in warning for text in texts)
            assert False in actual["training compiled"]  # after an attempt that may reach the layer
            assert any(actual["the rest compiled"])
