"""What user code may return from a step or a metric: logs are means over all replicas."""

import numpy as np
import pytest
from scenarios import assert_close, on
from scenarios import training_logs as scenarios

pytestmark = pytest.mark.keras3_only(
    "Keras 2 averages what a step returns as stock TensorFlow does"
)


@on("1x2", "2x2")
def test_logs_are_means_over_all_replicas(group):
    mean = np.arange(group.replicas).mean()
    expected = {
        **dict.fromkeys(["scalar", "loss", "epoch", "half", "double", "bfloat16"], mean),
        **dict.fromkeys(["int32", "int64"], 10 * mean),
        "vector": [mean, 2 * mean, 1.0],
        "matrix": np.full([2, 3], mean),
        "bool": 1 / group.replicas,
        "python_float": 0.25,
        "python_int": 3,
        "numpy": [1.5, 2.5],
        "variable": [1.0],
    }
    assert_close(group.run(scenarios.return_all_sorts), expected)


@on("2x1", "2x2")
def test_a_callback_of_one_worker_reads_means_over_all(group):
    """Also if no other worker reads logs; without it they are not averaged."""
    unread = group.run(scenarios.read_logs_on_last_worker, reads=False)
    *others, last = group.run(scenarios.read_logs_on_last_worker, reads=True)
    assert_close([*unread, *others], unread[0])
    for name, value in unread[0].items():
        np.testing.assert_array_equal(last[name], value, err_msg=name)
        np.testing.assert_allclose(last[f"read in {name}"], value, rtol=1e-6, err_msg=name)
