"""AdaScale on replicas, on workers, and accumulated there: the numbers of the paper."""

import numpy as np
import pytest
from scenarios import adascale as scenarios
from scenarios import given_gradients
from support import keras_versions, optimizer_oracles

# float32 gradients; ‖g‖² travels in float32; weights collect 50 roundings.
ESTIMATES = {"rtol": 3e-6, "atol": 3e-6}
WEIGHTS = {"rtol": 1e-5, "atol": 2e-6}


def expected(count, kind="own", schedule=False, momentum=0.9):
    """Estimates [steps, 4] and weights [n] after all steps, from the float64 oracle."""
    gradients = scenarios.gradients_of(count)
    flat = np.concatenate([g.reshape(*g.shape[:2], -1) for g in gradients], axis=2)
    initial = np.concatenate([v.ravel() for v in given_gradients.initial_values()])
    rate = (lambda step: 0.1 if step <= 20 else 0.05 if step <= 60 else 0.01) if schedule else 0.05
    oracle = optimizer_oracles.AdaScaleOracle(initial, rate, count, momentum)
    estimates = []
    for gradients_of_step in flat:
        oracle.step(gradients_of_step)
        estimates.append([oracle.gain, oracle.tau, *oracle.averages()])
    return np.array(estimates), oracle.weights


@pytest.mark.parametrize(
    ("group", "count", "options"),
    [
        ("1x4", 4, {"kind": "mirrored"}),
        pytest.param("1x4", 8, {}, marks=keras_versions.needs_accumulation),
        ("2x2", 4, {"schedule": True}),
        pytest.param("2x2", 8, {"schedule": True}, marks=keras_versions.needs_accumulation),
        pytest.param("4x1", 4, {"momentum": 0.0}, marks=pytest.mark.slow),
    ],
    indirect=["group"],
)
def test_on_replicas(group, count, options):
    results = group.run(scenarios.steps, count=count, **options)
    estimates, weights = expected(count, **options)
    assert 1.2 < estimates[-1, 0] < count - 0.05  # neither all noise nor none
    for result in results:
        np.testing.assert_allclose(result["estimates"], estimates, **ESTIMATES)
        assert result["iterations"] == len(estimates)
        for copy in result["weights"]:
            np.testing.assert_allclose(copy, weights, **WEIGHTS)
            np.testing.assert_array_equal(copy, results[0]["weights"][0])
