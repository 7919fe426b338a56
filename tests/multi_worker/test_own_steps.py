"""A model with a training step of its own, which builds it."""

import pytest
from scenarios import assert_close, on
from scenarios import own_steps as scenarios


@on("1x2", "2x1", "2x2")
@pytest.mark.keras3_only("steps of Keras 2 call other functions for losses and metrics")
def test_with_the_same_data_all_replicas_do_what_one_does(group):
    """The layers have no Input: each worker has another seed, and worker 0's weights count."""
    expected = scenarios.train(None, replicas=1)
    assert len({*expected["loss"]}) == 3, "it moves in each epoch"
    # The same sums in another order, over twelve steps of Adam.
    results = group.run(scenarios.train, replicas=group.replicas)
    assert_close(results, expected, rtol=2e-4, atol=2e-5)
