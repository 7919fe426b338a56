"""AdaScale in `fit`: all workers measure the same, stop after the same step, and grow together."""

import numpy as np
from scenarios import gain_callbacks as scenarios
from scenarios import on
from support import keras_versions

# Gradients are float32, and the weights that they are taken at differ by roundings of five to ten
# steps with momentum.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}


def assert_same_on_all_replicas(results):
    """All logs of all workers, and the weights of all their replicas, bit for bit."""
    for actual in results:
        assert actual.keys() == results[0].keys()
        for name in actual:
            expected = results[0][f"{name.partition('.')[0]}.0" if "." in name else name]
            np.testing.assert_array_equal(actual[name], expected, err_msg=name)


@on("1x2", "2x1", "2x2")
@keras_versions.needs_accumulation
def test_all_measure_the_same_and_stop_together(group):
    results = group.run(scenarios.fit_until_stopped, count=group.replicas)
    assert_same_on_all_replicas(results)
    # The same small batches, one after the other in one process.
    actual, expected = results[0], scenarios.fit_until_stopped(None, group.replicas)
    assert expected.keys() >= {"log loss", "log gain", "log scale_invariant_steps", "weight 0.0"}
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], **TOLERANCE, err_msg=name)

    gains = actual["measured gain"]
    assert (gains > 1.05).all() and (gains < group.replicas - 0.05).any()
    assert gains.sum() >= scenarios.TOTAL > gains[:-1].sum()
    # It has ended within an epoch, and that one has its logs, too.
    epochs = len(actual["log loss"])
    assert len(gains) % scenarios.UPDATES != 0
    assert epochs == -(-len(gains) // scenarios.UPDATES) > 1
