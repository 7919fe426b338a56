"""The time of an exchange: the other workers sleep, and are woken up."""

import itertools

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
