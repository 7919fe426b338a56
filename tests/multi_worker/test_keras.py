"""What Keras promises on one device holds on several, or is refused with the reason."""

import numpy as np
import pytest
from scenarios import basics, jit, on
from scenarios import keras as scenarios
from support import keras_versions

compiled_predict = keras_versions.needs_keras(
    "3.12", "XLA compiles `predict` for all local devices at once"
)


@on("1x2", "2x2")
class TestKeras:
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
