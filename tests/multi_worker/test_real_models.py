"""The programs of tests/real_models, as users write them: on workers they do what they do alone.

Each program trains on several workers, and in one process without a strategy. On workers it takes
as many steps, on the same global batches. All workers return the same numbers and the same weights.
"""

import functools
import tempfile

import keras
import numpy as np
import pytest
from scenarios import on
from scenarios import real_models as scenarios

pytestmark = [
    pytest.mark.keras3_only("the programs are written for Keras 3"),
    pytest.mark.slow,
]


@functools.cache
def alone(name):
    """Return what a program returns in one process, without a strategy."""
    keras.backend.clear_session()
    with tempfile.TemporaryDirectory() as folder:
        return scenarios.run_program(None, name, folder)


@pytest.fixture
def run_on_group(group, tmp_path):
    """A function that returns what a program returns on workers, the same on all of them."""

    def run(name):
        results = group.run(scenarios.run_program, name=name, folder=str(tmp_path), timeout=300)
        for actual in results:
            for key, value in results[0].items():
                np.testing.assert_array_equal(actual[key], value, err_msg=key)
        return results[0]

    return run


@on("2x2")  # it has what is peculiar to 2x1 and 1x2
def test_gan(run_on_group):
    """Two optimizers, an own `train_step`, no `call`. What it draws comes nearer to the images."""
    results = run_on_group("gan")
    for first, last in (results["distance"], alone("gan")["distance"]):
        # Other noise gives other images: in one process four seeds end between 0.42 and 0.56.
        assert last < 0.75 * first
    assert np.isfinite([results["generator_loss"], results["discriminator_loss"]]).all()


@on("2x1")
def test_diffusion(run_on_group):
    """A copy of the weights by moving average in `train_step`. The points are near the ring."""
    results = run_on_group("diffusion")
    assert results["loss"][-1] < 0.8 * results["loss"][0]
    # Of radius 2. In one process four seeds end between 0.115 and 0.135.
    assert max(results["distance"], alone("diffusion")["distance"]) < 0.3


@on("2x1")
def test_transfer_learning(run_on_group):
    """Saved, loaded, frozen and compiled again. Tuning all layers helps."""
    results, expected = run_on_group("transfer_learning"), alone("transfer_learning")
    assert results["loss"][-1] < 0.2 * results["loss"][0]
    assert results["moved_frozen"] == 0 < results["moved_tuned"]
    assert results["tuned_accuracy"] > results["frozen_accuracy"]
    # Two standard deviations of an accuracy of 0.9 of 150 images.
    assert results["tuned_accuracy"] > expected["tuned_accuracy"] - 0.05
