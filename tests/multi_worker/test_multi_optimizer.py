"""Optimizers that hold several optimizers: each combination beside one optimizer, or refused."""

import pytest
from scenarios import assert_close, on
from scenarios import multi_optimizer as scenarios
from support.all_pairs import every_pair
from support.keras_versions import needs_keras

pytestmark = [
    pytest.mark.keras3_only("its Keras has no MultiOptimizer"),
    needs_keras("3.15", "it has no MultiOptimizer"),
]

# Keras cannot save a function.
TOGETHER = {
    "unbroken": ["multi", "function"],
    "loaded": ["multi"],
}


RULES = ["adasum", "mean", "adacons", "of each optimizer"]


@pytest.mark.parametrize(
    ("group", "kind", "rule", "way"),
    every_pair(["1x2", "2x1"], scenarios.MAKE, RULES, TOGETHER),
    indirect=["group"],
)
def test_several_optimizers_take_the_steps_of_one(group, tmp_path, kind, rule, way):
    """The same numbers are added in other buckets, hence the tolerance of a few roundings."""
    if kind.startswith("delta") and rule == "mean":
        pytest.skip("DeltaAdasum refuses the mean")

    def train(together):
        folder = str(tmp_path / together)
        arguments = {"together": together, "kind": kind, "rule": rule, "way": way}
        return group.run(scenarios.train, folder=folder, **arguments)

    expected = train("one")[0]
    for together in TOGETHER[way]:
        assert_close(train(together), expected, rtol=1e-5, atol=1e-6)


@on("1x2")
def test_combinations_that_one_optimizer_would_take_differently_are_refused(group):
    expected = {
        "delta of several": "DeltaAdasum wraps one optimizer, not several",
        "delta of a function": "DeltaAdasum wraps one optimizer, not several",
        "adascale of several": "AdaScale wraps one optimizer, not several",
        "several adascales": "'adascale' in a MultiOptimizer",
        "across": "'sequential/one/kernel' and 'sequential/two/kernel'",
        "model": "one optimizer has to update all variables of a group",
        "tracker": "'multi_optimizer', holds 2 optimizers",
    }
    for case, text in expected.items():
        message = str(group.run(scenarios.refused, case=case)[0]["message"])
        assert text in message, f"{case}: {message}"
