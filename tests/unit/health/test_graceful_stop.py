"""The agreement on where a training stops, among workers that are threads."""

import random
import threading
import time

import pytest

from tf_adasum.errors import WorkerLostError
from tf_adasum.health.diagnosis import Status
from tf_adasum.health.graceful_stop import GracefulStop

pytestmark = pytest.mark.one_stack

SECONDS = 20


class Cluster:
    """Workers whose statuses travel, late and one after the other, and who wait for each other."""

    def __init__(self, count, places=200, lead=1):
        self.stoppings = [GracefulStop(rank, count) for rank in range(count)]
        self.statuses = [{} for _ in range(count)]
        self.stopped = [None] * count
        self.steps = [0] * count
        self._change, self._places, self._lead = threading.Condition(), places, lead
        self._ends = False

    def work(self, rank):
        """Come to places, never more than so many before the slowest: a step waits for all."""
        stopping = self.stoppings[rank]
        for place in range(1, self._places + 1):
            if stopping.stops_here():
                self.stopped[rank] = place
                return
            time.sleep(random.random() * 0.002)
            with self._change:
                self.steps[rank] = place
                self._change.notify_all()
                deadline = time.monotonic() + SECONDS
                while min(self.steps) < place - self._lead + 1:
                    assert time.monotonic() < deadline
                    self._change.wait(0.1)

    def carry(self):
        """Play the health monitor: worker 0 hears all, the others hear worker 0."""
        while not self._ends:
            for rank in random.sample(range(len(self.stoppings)), len(self.stoppings)):
                told = Status(**self.stoppings[rank].exchange(self.statuses[rank]))
                for other in range(len(self.stoppings)) if rank == 0 else [0]:
                    if other != rank:
                        self.statuses[other][rank] = told
                time.sleep(0.001)

    def run(self, asking):
        for stopping in self.stoppings:
            stopping.begin()
        carrier = threading.Thread(target=self.carry)
        workers = [threading.Thread(target=self.work, args=[r]) for r in range(len(self.steps))]
        for thread in [carrier, *workers]:
            thread.start()
        time.sleep(random.random() * 0.05)
        for rank in asking:
            self.stoppings[rank].asked = True
        for thread in workers:
            thread.join(SECONDS)
        self._ends = True
        carrier.join()
        assert not any(thread.is_alive() for thread in workers)
        return self.stopped


@pytest.mark.parametrize("asking", [[0], [1], [2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("lead", [1, 3], ids=["in step", "some run ahead"])
def test_all_stop_at_the_same_place(asking, lead):
    for _ in range(5):
        stopped = Cluster(3, lead=lead).run(asking)
        assert len(set(stopped)) == 1 and stopped[0] is not None, stopped


def test_nobody_stops_who_is_not_asked():
    assert Cluster(3, places=20).run([]) == [None] * 3


def test_alone_it_is_the_next_place():
    alone = GracefulStop(0, 1)
    assert not alone.stops_here(), "no training"
    alone.begin()
    assert not alone.stops_here()
    alone.asked = True
    assert alone.stops_here()
    alone.end()
    assert not alone.stops_here() and not alone.is_asked


def test_one_that_is_not_in_that_training_is_waited_for():
    first = GracefulStop(0, 2)
    first.begin()
    first.asked = True
    assert first.exchange({1: Status(training=0, passed=0)})["stop_at"] == 0
    assert first.exchange({1: Status(training=2, passed=9)})["stop_at"] == 0, "of another one"
    assert first.exchange({1: Status(training=1, passed=0)})["stop_at"] == 0, "not held yet"
    assert first.exchange({1: Status(training=1, passed=4)})["stop_at"] == 4


def test_what_was_said_stays_true():
    second = GracefulStop(1, 2)
    second.begin()
    assert [second.stops_here() for _ in range(3)] == [False] * 3
    held = {"training": 1, "asked": 1, "passed": 4, "stop_at": 0}
    assert second.exchange({0: Status(training=1, asked=1)}) == held
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(second.stops_here() for _ in range(2)))
    thread.start()
    time.sleep(0.2)
    assert not answers and second.waits() > 0.1
    assert second.exchange({0: Status(training=1, asked=1)}) == held
    second.exchange({0: Status(training=1, asked=1, stop_at=5)})
    thread.join(SECONDS)
    assert answers == [False, True]


def test_it_does_not_wait_for_a_lost_worker():
    causes = [None]
    first = GracefulStop(0, 2, lambda: causes[0])
    first.begin()
    first.asked = True
    threading.Timer(0.2, lambda: causes.__setitem__(0, "worker 1 was lost")).start()
    with pytest.raises(WorkerLostError, match="worker 1 was lost"):
        first.stops_here()
    assert first.waits() == 0
