"""Models with training steps of their own, as GANs: built by their first step, trained as one."""

import functools

import numpy as np
import pytest
from scenarios import own_steps as scenarios

# The same sums in another order, over twelve steps of Adam.
FLOAT32_STEPS = {"rtol": 2e-4, "atol": 2e-5}


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


@functools.cache
def one_process(kind):
    return scenarios.train(None, replicas=1, kind=kind)


@on("1x2", "2x1", "2x2")
@pytest.mark.keras3_only("steps of Keras 2 call other functions for losses and metrics")
@pytest.mark.feature("GANs, VAEs and others with a `train_step` and without `call`")
@pytest.mark.parametrize("kind", ["gan", "vae", "probe"])
def test_with_the_same_data_all_replicas_do_what_one_does(group, kind):
    """The layers have no Input: each worker has another seed, and worker 0's weights count."""
    expected = one_process(kind)
    results = group.run(scenarios.train, replicas=group.replicas, kind=kind)
    for actual in results:
        copies = {name: value for name, value in actual.items() if name.startswith("copy")}
        assert {*actual} - {*copies} == {*expected}
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, err_msg=name, **FLOAT32_STEPS)
        for name, value in copies.items():
            first = results[0][f"{name.partition('.')[0]}.0"]
            np.testing.assert_array_equal(value, first, err_msg=name)
    (loss,) = {"d_loss", "total_loss", "loss"} & {*expected}
    assert len({*expected[loss]}) == len(expected[loss]), "it moves in each epoch"
