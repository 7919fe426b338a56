"""What Keras promises on one device holds on several, or is refused with the reason."""

import numpy as np
import pytest
from scenarios import jit, on
from scenarios import keras as scenarios
from support import keras_versions

from tf_adasum.errors import see

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

    def test_nothing_is_traced_after_the_first_epoch(self, group):
        for actual in group.run(scenarios.count_traces):
            assert actual["counts"][0] == actual["counts"][1]


@on("1x2")
@pytest.mark.keras3_only("Keras 2 has other functions")
def test_xla_reduces_no_gradients_and_tensorflow_s_strategy_divides_losses(group):
    (actual,) = group.run(scenarios.beside_fit)
    assert see("TFA-303") in str(actual["message"])
    assert actual["stock"].tolist() == [3.0, 12.0] and actual["ours"].tolist() == [6.0, 6.0]


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
