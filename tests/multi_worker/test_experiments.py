"""The experiments' simulation of N replicas ends with the weights that `fit` gives."""

import numpy as np
import pytest
from scenarios import experiments

pytestmark = pytest.mark.keras3_only("the experiments run on TensorFlow 2.21")


@pytest.mark.parametrize("group", ["1x4"], indirect=True)
@pytest.mark.parametrize(
    ("scenario", "least"),
    [
        pytest.param(experiments.simulated_and_trained, 1e-3, marks=pytest.mark.slow),
        pytest.param(experiments.pairs_simulated_and_trained, 0.1, marks=pytest.mark.always),
        pytest.param(experiments.gains_simulated_and_trained, 1e-2, marks=pytest.mark.always),
    ],
)
def test_a_simulation_ends_with_the_weights_of_fit(group, scenario, least):
    """float32, with sums in another order."""
    (returned,) = group.run(scenario, timeout=500)
    for name in (name for name in returned if name.startswith("before")):
        before, simulated, trained = (
            returned[name.replace("before", when)] for when in ("before", "simulated", "trained")
        )
        assert np.abs(trained - before).max() > least, name
        np.testing.assert_allclose(simulated, trained, rtol=0, atol=1e-5, err_msg=name)
    if "gain of fit" in returned:
        gain, steps = returned["gain of fit"]
        assert 1.1 < gain < 7.9 and 8 < steps < 48, "something to measure, no bound that hides it"
        np.testing.assert_allclose(returned["gain"], [gain, steps], rtol=1e-5)
