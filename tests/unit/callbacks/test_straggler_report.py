"""StragglerReport: which worker it names, what it measures, and its logs."""

import numpy as np
import pytest
from support.two_variables import linear

from tf_adasum.callbacks import straggler_report
from tf_adasum.callbacks.straggler_report import StragglerReport


@pytest.mark.parametrize(
    "waiting, slowest",
    [
        ([50.0, 2.0], 1),
        ([40.0, 45.0, 3.0, 41.0], 2),
        ([8.0, 2.0], -1),  # less than a tenth of the step
        ([3.0, 3.0, 3.0], -1),
        ([50.0, 2.0, 2.0, 2.0], -1),  # three that are slow alike
        ([0.0], -1),
    ],
)
def test_who_is_named(waiting, slowest):
    waiting = np.array(waiting)
    assert straggler_report._slowest(np.full(len(waiting), 60.0), waiting, 500) == slowest


def test_few_looks_name_nobody_by_chance():
    """Two workers that wait equally long; their samples are independent."""
    random = np.random.default_rng(0)
    named = [
        straggler_report._slowest(np.full(2, 60.0), 60 * random.binomial(25, 0.5, 2) / 25, 25)
        for _ in range(1000)
    ]
    assert sum(rank >= 0 for rank in named) < 20


@pytest.mark.parametrize(
    ("slowest", "waiting", "said"),
    [
        ([0, 1, 1], [50.0, 2.0], "worker 1 is slow: in a step of 60 ms, it waits 2 ms"),
        ([0, 1], [50.0, 2.0], None),
        ([-1, -1], [50.0, 40.0], "every worker spends at least 40 ms in collectives"),
        ([-1, -1], [5.0, 4.0], None),
    ],
)
def test_the_conclusion_needs_most_epochs(slowest, waiting, said):
    measured = {"step_ms": np.full(2, 60.0), "waiting_ms": np.array(waiting)}
    line = straggler_report._conclusion([{"slowest": rank, **measured} for rank in slowest])
    assert line is None if said is None else said in line


def test_one_process_waits_for_nobody(strategy):
    given = {"batch_size": 2, "epochs": 2, "verbose": 0, "callbacks": [StragglerReport()]}
    x, y = np.ones([8, 3]), np.ones([8, 1])
    history = linear(strategy).fit(x, y, validation_data=(x, y), **given).history
    assert history["waiting_ms/worker_0"] == [0.0, 0.0]
    assert history["slowest_worker"] == [-1, -1]
    assert all(value > 0 for value in history["step_ms/worker_0"])
