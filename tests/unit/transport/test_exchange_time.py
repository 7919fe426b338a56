"""The time of an exchange: the other workers sleep, and are woken up."""

import itertools
import types

import numpy as np
import pytest

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.transport import exchange_time


@pytest.mark.parametrize("workers", [2, 3, 4, 7, 16])
def test_each_of_two_workers_once_waits_for_the_other(monkeypatch, workers):
    pauses, counted = [], []
    for rank in range(workers):
        cluster = Cluster(("a:1",) * workers, ("worker",) * workers, rank)
        own, numbers = [], itertools.count()
        monkeypatch.setattr(exchange_time.time, "sleep", own.append)
        exchange_time._after_pauses(cluster, lambda numbers=numbers: next(numbers))
        pauses.append(own)
        counted.append({number for number, pause in enumerate(own) if pause == max(own)})
    assert min(map(min, pauses)) >= 0.001, "for longer than the thread of a mesh polls"
    for one, other in itertools.permutations(range(workers), 2):
        assert counted[one] - counted[other]


@pytest.mark.parametrize("slow_bit", [0, 1])
def test_a_slow_wake_up_counts_for_those_that_come_last(monkeypatch, slow_bit):
    """Workers whose ranks differ in a bit wake each other slowly, whoever else is fast."""
    monkeypatch.setattr(exchange_time.time, "sleep", lambda seconds: None)
    turns = 2 * exchange_time.TIMES
    cluster = Cluster(("a:1",) * 4, ("worker",) * 4, 3)
    seconds = [1.0 if number // turns == slow_bit else 0.001 for number in range(2 * turns)]
    assert exchange_time._after_pauses(cluster, iter(seconds).__next__) == 1.0


@pytest.mark.parametrize(
    ("seconds", "count"), [([0.01], 13), ([0.2], 2), ([0.6], 1), ([0.2, 0.01], 14)]
)
def test_a_slow_exchange_is_made_less_often(monkeypatch, seconds, count):
    monkeypatch.setattr(exchange_time.time, "sleep", lambda seconds: None)
    cluster = Cluster(("a:1",) * 4, ("worker",) * 4, 0)
    all_workers = types.SimpleNamespace(
        cluster=cluster, gather=lambda failure, number: (failure, np.array([[number]]))
    )
    made = []

    def exchange():
        made.append(seconds[min(len(made), len(seconds) - 1)])
        return made[-1]

    assert exchange_time.measured(all_workers, exchange) == ("", seconds[-1])
    assert len(made) == count
