"""The experiments' simulation of N replicas ends with the weights that `fit` gives."""

import numpy as np
import pytest
from scenarios import experiments

pytestmark = pytest.mark.keras3_only("the experiments run on TensorFlow 2.21")

FEW = [
    ("images", "momentum", "adasum", False),
    ("images", "adam", "adasum", True),
]
# Every rule, every optimizer, both forms, every model.
MANY = [
    ("images", "adam", "mean", False),
    ("images", "lamb", "adasum", True),
    ("signals", "momentum", "adasum", False),
    ("residual", "momentum", "adasum", False),
    ("characters", "lamb", "mean", False),
    ("characters", "lamb", "adasum", True),
    ("clicks", "sgd", "adasum", False),
    ("clicks", "sgd", "adacons", False),
]

on_four_devices = pytest.mark.parametrize("group", ["1x4"], indirect=True, scope="module")


def assert_moved_alike(before, simulated, trained, least):
    """float32, with sums in another order."""
    assert np.abs(trained - before).max() > least
    np.testing.assert_allclose(simulated, trained, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
@on_four_devices
@pytest.mark.slow
def test_a_simulation_ends_with_the_weights_of_fit(group, cases):
    (returned,) = group.run(experiments.simulated_and_trained, timeout=500, cases=cases)
    for index in range(len(cases)):
        whens = ("before", "simulated", "trained")
        assert_moved_alike(*(returned[f"{when} {index}"] for when in whens), least=1e-3)


@on_four_devices
def test_sparse_gradients_end_with_the_tables_of_fit(group):
    rules = ("mean", "adasum")
    (returned,) = group.run(experiments.pairs_simulated_and_trained, timeout=300, rules=rules)
    for rule in rules:
        tables = (returned[f"{when} {rule}"] for when in ("before", "simulated", "trained"))
        for of_table in zip(*tables, strict=True):
            assert_moved_alike(*of_table, least=0.1)


@on_four_devices
def test_simulated_gains_and_weights_are_those_of_adascale(group):
    (returned,) = group.run(experiments.gains_simulated_and_trained, timeout=300)
    gain, steps = returned["trained gain"]
    assert 1.1 < gain < 7.9 and 8 < steps < 48, "something to measure, and no bound that hides it"
    np.testing.assert_allclose(returned["simulated gain"], [gain, steps], rtol=1e-5)
    whens = ("before", "simulated", "trained")
    assert_moved_alike(*(returned[when] for when in whens), least=1e-2)
