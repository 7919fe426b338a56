"""The experiments' simulation of N replicas ends with the weights that `fit` gives."""

import numpy as np
import pytest
from scenarios import experiments

pytestmark = pytest.mark.keras3_only("the experiments are played on TensorFlow 2.21")

FEW = [
    ("images", "momentum", "mean", False),
    ("images", "momentum", "adasum", False),
    ("characters", "lamb", "adasum", True),
]
# Every rule, every optimizer, both forms, both shapes of data.
MANY = [
    ("images", "sgd", "adasum", False),
    ("images", "momentum", "adasum of the model", False),
    ("images", "sgd", "adacons", False),
    ("images", "adam", "mean", False),
    ("images", "lamb", "mean", False),
    ("images", "momentum", "adasum", True),
    ("images", "adam", "adasum", True),
    ("images", "lamb", "adasum", True),
    ("characters", "lamb", "mean", False),
    ("residual", "momentum", "adasum", False),
    ("signals", "momentum", "adasum", False),
]


@pytest.mark.parametrize(
    "cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("group", ["1x4"], indirect=True, scope="module")
def test_a_simulation_ends_with_the_weights_of_fit(group, cases):
    (returned,) = group.run(experiments.simulated_and_trained, timeout=300, cases=cases)
    for case, weights in zip(cases, returned, strict=True):
        assert np.abs(weights["trained"] - weights["before"]).max() > 1e-3, case
        # float32, with sums in another order.
        np.testing.assert_allclose(
            weights["simulated"], weights["trained"], rtol=0, atol=1e-5, err_msg=str(case)
        )
