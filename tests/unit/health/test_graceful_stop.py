"""The agreement on where a training stops, among workers that are threads."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.launching import eventually
from support.pace import PACE

from tf_adasum.errors import WorkerLostError
from tf_adasum.health.diagnosis import Status
from tf_adasum.health.graceful_stop import GracefulStop

pytestmark = pytest.mark.version_independent

SECONDS = 20 * PACE


class Workers:
    """Workers whose statuses travel, late and one after the other, and who wait for each other."""

    def __init__(self, count, places=200, lead=1):
        self.stoppings = [GracefulStop(rank, count, self._cause) for rank in range(count)]
        self.statuses = [{} for _ in range(count)]
        self.steps = [0] * count
        self._change, self._places, self._lead = threading.Condition(), places, lead
        self._ends = False

    def _cause(self):
        return "the test is over" if self._ends else None

    def work(self, rank):
        """Come to places, never more than so many before the slowest: a step waits for all."""
        for place in range(1, self._places + 1):
            if self.stoppings[rank].stops_here():
                return place
            time.sleep(random.random() * 0.002)
            with self._change:
                self.steps[rank] = place
                self._change.notify_all()
                assert self._change.wait_for(
                    lambda place=place: min(self.steps) > place - self._lead, SECONDS
                )

    def carry(self):
        """Stand for the health monitor: worker 0 hears all, the others hear worker 0."""
        while not self._ends:
            for rank in random.sample(range(len(self.stoppings)), len(self.stoppings)):
                status = Status(**self.stoppings[rank].exchange(self.statuses[rank]))
                for other in set(range(len(self.stoppings))) - {rank} if rank == 0 else {0}:
                    self.statuses[other][rank] = status
                time.sleep(0.001)

    def run(self, asking):
        """Return the place at which each worker stops."""
        for stopping in self.stoppings:
            stopping.begin()
        with ThreadPoolExecutor() as pool:
            carrier = pool.submit(self.carry)
            places = [pool.submit(self.work, rank) for rank in range(len(self.steps))]
            time.sleep(random.random() * 0.05)
            for rank in asking:
                self.stoppings[rank].requested_here = True
            try:
                return [place.result(SECONDS) for place in places]
            finally:
                self._ends = True
                carrier.result()


@pytest.mark.parametrize("asking", [[0], [1], [2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("lead", [1, 3], ids=["in step", "some run ahead"])
def test_all_stop_at_the_same_place(asking, lead):
    for _ in range(5):
        stopped = Workers(3, lead=lead).run(asking)
        assert len(set(stopped)) == 1 and stopped[0] is not None, stopped


def test_nobody_stops_who_is_not_asked():
    assert Workers(3, places=20).run([]) == [None] * 3


def test_alone_it_is_the_next_place():
    alone = GracefulStop(0, 1)
    assert not alone.stops_here(), "no training"
    alone.begin()
    assert not alone.stops_here()
    alone.requested_here = True
    assert alone.stops_here()
    alone.end()
    assert not alone.stops_here() and not alone.stop_requested


@pytest.mark.parametrize(
    ("training", "stop_points_passed", "stop_at"),
    [(0, 0, 0), (2, 9, 0), (1, 0, 0), (1, 4, 4)],
    ids=["not in a training", "in another training", "not held yet", "held"],
)
def test_one_that_is_not_in_that_training_is_waited_for(training, stop_points_passed, stop_at):
    first = GracefulStop(0, 2)
    first.begin()
    first.requested_here = True
    status = Status(training=training, stop_points_passed=stop_points_passed)
    assert first.exchange({1: status})["stop_at"] == stop_at


def test_what_was_sent_stays_true():
    second = GracefulStop(1, 2)
    second.begin()
    assert [second.stops_here() for _ in range(3)] == [False] * 3
    held = {"training": 1, "stop_requested": 1, "stop_points_passed": 4, "stop_at": 0}
    assert second.exchange({0: Status(training=1, stop_requested=1)}) == held
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(lambda: [second.stops_here() for _ in range(2)])
        eventually(lambda: second.waits() > 0.1)
        assert second.exchange({0: Status(training=1, stop_requested=1)}) == held
        second.exchange({0: Status(training=1, stop_requested=1, stop_at=5)})
        assert answers.result(SECONDS) == [False, True]


def test_it_does_not_wait_for_a_lost_worker():
    causes = iter([None, "worker 1 was lost"])
    first = GracefulStop(0, 2, lambda: next(causes))
    first.begin()
    first.requested_here = True
    with pytest.raises(WorkerLostError, match="worker 1 was lost"):
        first.stops_here()
    assert first.waits() == 0
