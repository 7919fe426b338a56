"""The experiments' simulation of N replicas ends with the weights that `fit` gives."""

import numpy as np
import pytest
from scenarios import experiments

pytestmark = pytest.mark.keras3_only("the experiments are played on TensorFlow 2.21")

FEW = [
    ("images", "momentum", "adasum", False),
    ("images", "adam", "adasum", True),
]
# Every rule, every optimizer, both forms, every model.
MANY = [
    ("images", "sgd", "adasum", False),
    ("images", "momentum", "adasum of the model", False),
    ("images", "sgd", "adacons", False),
    ("images", "momentum", "mean", False),
    ("images", "adam", "mean", False),
    ("images", "lamb", "mean", False),
    ("images", "momentum", "adasum", True),
    ("images", "lamb", "adasum", True),
    ("signals", "momentum", "adasum", False),
    ("residual", "momentum", "adasum", False),
    ("characters", "lamb", "mean", False),
    ("characters", "lamb", "adasum", True),
    ("clicks", "sgd", "adasum", False),
    ("clicks", "sgd", "adacons", False),
]


@pytest.mark.parametrize(
    "cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("group", ["1x4"], indirect=True, scope="module")
def test_a_simulation_ends_with_the_weights_of_fit(group, cases):
    (returned,) = group.run(experiments.simulated_and_trained, timeout=500, cases=cases)
    for index, case in enumerate(cases):
        before, simulated, trained = (
            returned[f"{when} {index}"] for when in ("before", "simulated", "trained")
        )
        assert np.abs(trained - before).max() > 1e-3, case
        # float32, with sums in another order.
        np.testing.assert_allclose(simulated, trained, rtol=0, atol=1e-5, err_msg=str(case))


@pytest.mark.parametrize("group", ["1x4"], indirect=True, scope="module")
def test_sparse_gradients_end_with_the_tables_of_fit(group):
    rules = ("mean", "adasum")
    (returned,) = group.run(experiments.pairs_simulated_and_trained, timeout=300, rules=rules)
    for rule in rules:
        before, simulated, trained = (
            returned[f"{when} {rule}"] for when in ("before", "simulated", "trained")
        )
        for index in range(2):
            assert np.abs(trained[index] - before[index]).max() > 0.1, (rule, index)
            # float32, with sums in another order.
            np.testing.assert_allclose(simulated[index], trained[index], rtol=0, atol=1e-5)


@pytest.mark.parametrize("group", ["1x4"], indirect=True, scope="module")
def test_simulated_gains_and_weights_are_those_of_adascale(group):
    (returned,) = group.run(experiments.gains_simulated_and_trained, timeout=300)
    gain, steps = returned["trained gain"]
    assert 1.1 < gain < 7.9 and 8 < steps < 48, "something to measure, and no bound that hides it"
    np.testing.assert_allclose(returned["simulated gain"], [gain, steps], rtol=1e-5)
    for name in ("", " scaling"):
        trained = returned[f"trained{name}"]
        assert np.abs(trained - returned["before"]).max() > 1e-2
        # float32, with sums in another order.
        np.testing.assert_allclose(returned[f"simulated{name}"], trained, rtol=0, atol=1e-5)
