"""The agreement on where a training stops: among workers in random histories, then in threads."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import hypothesis.strategies as st
import pytest
from support.fuzzing import fuzz_settings
from support.launching import eventually
from support.pace import PACE

from tf_adasum.errors import WorkerLostError
from tf_adasum.health.diagnosis import Status
from tf_adasum.health.graceful_stop import GracefulStop

COUNT, ROUNDS = 3, 9
EVENT = st.tuples(st.sampled_from(["step", "send", "ask"]), st.integers(0, COUNT - 1))
EVENTS = st.lists(EVENT, max_size=60)
ROUND = [(act, rank) for act in ("step", "send") for rank in range(COUNT)]


@fuzz_settings(1000)
@hypothesis.given(st.tuples(EVENTS, EVENTS), st.sampled_from([1, 3]))
def test_all_stop_at_the_same_place(trainings, lead):
    """No worker can be more than `lead` places before the slowest: a step waits for all.

    In the second training a worker still knows the statuses of the first one.
    """
    workers = [GracefulStop(rank, COUNT, lambda: "it would wait") for rank in range(COUNT)]
    heard = [{} for _ in workers]
    for events in trainings:
        for each in workers:
            each.begin()
        places, stopped = [0] * COUNT, {}
        for act, rank in events + ROUNDS * ROUND:
            if act == "ask":
                workers[rank].requested_here = True
            elif act == "send":  # worker 0 hears all, the others hear worker 0
                status = Status(**workers[rank].exchange(heard[rank]))
                for other in range(1, COUNT) if rank == 0 else [0]:
                    heard[other][rank] = status
            elif rank not in stopped and places[rank] < min(places) + lead:
                with contextlib.suppress(WorkerLostError):
                    if workers[rank].stops_here():
                        stopped[rank] = places[rank]
                    else:
                        places[rank] += 1
        if any(act == "ask" for act, _ in events):
            assert stopped == dict.fromkeys(range(COUNT), max(places)), f"they are at {places}"
        else:
            assert not stopped and min(places) >= ROUNDS, f"they are at {places}"


def test_alone_it_is_the_next_place():
    alone = GracefulStop(0, 1)
    assert not alone.stops_here(), "no training"
    alone.begin()
    assert not alone.stops_here()
    alone.requested_here = True
    assert alone.stops_here()
    alone.end()
    assert not alone.stops_here() and not alone.stop_requested


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
        assert answers.result(20 * PACE) == [False, True]


def test_it_does_not_wait_for_a_lost_worker():
    causes = iter([None, "worker 1 was lost"])
    first = GracefulStop(0, 2, lambda: next(causes))
    first.begin()
    first.requested_here = True
    with pytest.raises(WorkerLostError, match="worker 1 was lost"):
        first.stops_here()
    assert first.waits() == 0
