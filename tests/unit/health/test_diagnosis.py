"""What a worker makes of the others' statuses."""

import dataclasses
import json

import pytest
from support.rendezvous_tasks import cluster_of

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health import call_log, diagnosis
from tf_adasum.health.diagnosis import (
    ALL_WAITING_GRACE,
    DEADLOCK_SECONDS,
    DIFFERENT_CALLS_GRACE,
    GRACE,
    MISMATCH_SECONDS,
    UNREACHABLE_SECONDS,
    CollectiveError,
    Status,
)

CLUSTER = Cluster(("a:1", "b:2", "c:3"), ("chief 0", "worker 0", "worker 1"), 1)
COLLECTIVE_TIMEOUT = 300.0


def judged(own, *, is_broken=False, collective_timeout=COLLECTIVE_TIMEOUT, **others):
    """Why worker 1 gives up, with `_0` and `_2` as the statuses of the others; or ""."""
    statuses = {1: own, **{int(name[1:]): status for name, status in others.items()}}
    return diagnosis.failure(CLUSTER, statuses, collective_timeout, is_broken) or ""


def waiting(waits, **fields):
    fields = {"state": "running", "call": 3, "in_call": 1, "collectives_entered": 7, **fields}
    return Status(waiting_seconds=waits, **fields)


def in_python(waits, **fields):
    return waiting(waits, python_collective=4, location="callback.py:3 (on_epoch_end)", **fields)


WAITING, RUNNING = waiting(GRACE), Status("running")
INSIDE = Status("running", call=3, in_call=1)
FAILED, ENDED = Status("failed", "ValueError: no", call=3), Status("ended", call=3)
ABORTED = Status("aborted", "the connection broke")
UNREACHABLE = {"unreachable": "worker 1 (c:3): no answer"}
LATE = Status("running", location="train.py:4 (main)")


@pytest.mark.parametrize("own", [Status(), RUNNING, WAITING])
def test_nobody_is_to_blame_while_all_run(own):
    assert judged(own, _0=RUNNING, _2=WAITING) == ""


def test_a_lost_worker_ends_everything_at_once():
    lost = Status("lost", "it is silent")
    assert judged(RUNNING, _2=lost) == "", "not where it is not needed"
    for own in INSIDE, Status(), Status("running", waiting_seconds=0.1):
        cause = judged(own, _0=RUNNING, _2=lost)
        assert cause.startswith("worker 1 (c:3) was lost: it is silent. Restart all workers")


def test_all_give_up_for_the_same_reason():
    assert judged(INSIDE, _2=ABORTED) == "the connection broke"
    assert judged(RUNNING, _2=ABORTED) == "", "not where it is not needed"
    of_this_one = "worker 0 (b:2) was lost: it is silent"
    cause = judged(INSIDE, _2=Status("aborted", of_this_one))
    assert cause == f"worker 1 (c:3) cannot continue: {of_this_one}", "whoever reads it is not lost"


def test_a_failure_matters_to_those_who_wait_in_the_same_call():
    assert judged(WAITING, _0=FAILED).startswith("chief 0 (a:1) failed: ValueError: no. Correct")
    assert judged(waiting(GRACE / 2), _0=FAILED) == ""
    assert judged(waiting(GRACE, call=4), _0=FAILED) == "", "they continue together"
    outside = waiting(GRACE, state="failed", in_call=0)
    assert judged(outside, _0=FAILED) == "", "it failed on both, and both continue"


def test_an_end_matters_to_those_who_wait():
    assert judged(RUNNING, _2=ENDED) == "", "worker 0 saves the model"
    waits_for_it = "worker 1 (c:3) has ended, and worker 0 waits for it."
    assert judged(WAITING, _2=ENDED).startswith(waits_for_it)
    cause = judged(WAITING, _2=Status("ended", "KeyError: 1"))
    assert cause.startswith("worker 1 (c:3) has ended: KeyError: 1. Correct")


def test_what_has_ended_a_collective_is_named_at_once():
    assert judged(INSIDE, _2=ENDED) == ""
    ended = "worker 1 (c:3) has ended, and worker 0 waits for it."
    assert judged(INSIDE, is_broken=True, _2=ENDED).startswith(ended)
    assert judged(INSIDE, _0=ABORTED, _2=FAILED) == ABORTED.why
    cause = judged(INSIDE, is_broken=True, _0=ABORTED, _2=FAILED)
    assert cause.startswith("worker 1 (c:3) failed: ValueError: no."), "it knows more"
    assert judged(INSIDE, is_broken=True, _2=INSIDE) == "", "nobody is to blame yet"


def test_a_link_that_is_cut():
    own, cut = waiting(UNREACHABLE_SECONDS), waiting(UNREACHABLE_SECONDS, **UNREACHABLE)
    why = "chief 0 (a:1) cannot reach worker 1 (c:3): no answer"
    assert judged(own, _0=cut, _2=own).startswith(f"{why}. Restart all")
    assert judged(waiting(20.0), _0=cut, _2=own, collective_timeout=20.0).startswith(why)
    healing = judged(
        waiting(ALL_WAITING_GRACE), _0=in_python(UNREACHABLE_SECONDS, **UNREACHABLE), _2=own
    )
    assert healing == "", "it may heal"
    assert judged(own, _0=cut, _2=RUNNING) == "", "it may be busy"
    said = diagnosis.waiting_message(CLUSTER, {0: cut, 1: own, 2: own})
    assert said == f"worker 0 has waited 30 s for the others, which are waiting as well ({why})"


@pytest.mark.parametrize("count", [3, 4])
def test_at_most_three_links_that_are_cut_are_named(count):
    cluster = cluster_of(*(f"a:{rank}" for rank in range(5)), rank=4)
    statuses = {
        rank: waiting(UNREACHABLE_SECONDS, unreachable=f"host {rank}") for rank in range(count)
    }
    said = diagnosis.waiting_message(cluster, statuses | {4: waiting(UNREACHABLE_SECONDS)})
    named = [f"worker {rank} (a:{rank}) cannot reach host {rank}" for rank in range(3)]
    assert said.endswith(f"({'; '.join([*named, '…'][:count])})")


def test_the_first_calls_that_differ_are_named():
    """Those of the chief; worker 1 has made the same calls as this one."""
    entries = call_log.Entry(5, 1, "fit"), call_log.Entry(5, 2, "evaluate")

    def different(**others):
        statuses = {1: Status("running", location="train.py:4")}
        statuses |= {int(name[1:]): status for name, status in others.items()}
        found = {"differs": entries}
        return diagnosis.different_calls(CLUSTER, statuses, lambda calls: found.get(calls))

    other = Status("running", calls="differs")
    assert different(_0=RUNNING, _2=RUNNING) is None
    text = different(_0=other, _2=RUNNING)
    assert "chief 0 (a:1) evaluate, but worker 0 (b:2) fit (at train.py:4). " in text
    caught = dataclasses.replace(other, why="ValueError: no")
    text = different(_0=caught, _2=RUNNING)
    assert "chief 0 (a:1) evaluate, after its last call failed: ValueError: no, but" in text
    for state in "failed", "ended", "lost", "aborted":
        assert different(_0=other, _2=Status(state)) is None, "that explains the difference"


def test_patience_ends():
    assert judged(waiting(COLLECTIVE_TIMEOUT - 1), _0=LATE) == ""
    cause = judged(waiting(COLLECTIVE_TIMEOUT), _0=LATE, _2=waiting(COLLECTIVE_TIMEOUT))
    assert "has waited 300 s for chief 0 (a:1), which is at train.py:4 (main). All" in cause
    cause = judged(waiting(COLLECTIVE_TIMEOUT), _2=waiting(5.0, collectives_entered=6))
    assert "for worker 1 (c:3)." in cause, "it waits in an earlier collective"


@pytest.mark.parametrize("other", [in_python(MISMATCH_SECONDS), waiting(MISMATCH_SECONDS, call=4)])
def test_workers_in_different_collectives_of_one_number(other):
    differ = "The workers wait for each other, because they have not made the same calls: chief 0"
    own, other = (
        dataclasses.replace(one, waiting_seconds=DIFFERENT_CALLS_GRACE) for one in (WAITING, other)
    )
    assert judged(own, _0=other, _2=own).startswith(
        f"{differ} is at {other.location}, worker 0 is at"
    )
    assert judged(own, _0=other, _2=RUNNING) == "", "may still come"
    assert judged(own, _0=other) == "", "nothing is known of worker 1"
    early = dataclasses.replace(other, waiting_seconds=GRACE)
    assert judged(waiting(MISMATCH_SECONDS), _0=early, _2=waiting(MISMATCH_SECONDS)) == ""


@pytest.mark.parametrize(
    ("other", "limit"),
    [
        (waiting, DEADLOCK_SECONDS),
        (lambda waits: in_python(waits, collectives_entered=8), MISMATCH_SECONDS),
    ],
)
def test_all_wait_for_each_other(other, limit):
    """Not before the limit is over: the last part of a collective may still travel."""
    assert judged(waiting(limit - 1), _0=other(limit), _2=waiting(limit)) == ""
    assert judged(waiting(limit), _0=other(ALL_WAITING_GRACE - 1), _2=waiting(limit)) == ""
    long = [
        {"own": waiting(each), "_0": other(each), "_2": waiting(each)} for each in (limit, 20.0)
    ]
    for cause in judged(**long[0]), judged(**long[1], collective_timeout=20.0):
        assert "have not made the same calls" in cause


def test_what_tensorflow_alone_knows():
    no = CollectiveError("no")
    reset = CollectiveError("Connection reset by peer", ("worker 1", "worker 0"))
    assert diagnosis.broken(CLUSTER, reset, "", {}).startswith(
        "the connection between worker 0 (b:2) and worker 1 (c:3) broke: Connection reset by peer. "
        "Restart all"
    )
    assert "between worker 0 (b:2) and others broke" in diagnosis.broken(CLUSTER, no, "", {})
    unreachable = diagnosis.broken(CLUSTER, reset, "chief 0 (a:1): no answer", {})
    assert "worker 0 (b:2) cannot reach chief 0 (a:1): no answer" in unreachable
    two = cluster_of("a:1", "b:2", rank=1)
    between = "between worker 1 (b:2) and worker 0 (a:1) broke"
    assert between in diagnosis.broken(two, no, "", {})
    statuses = {
        1: Status("running", location="b.py:2 (f)"),
        0: Status("running", location="a.py:1 (f)"),
    }
    differ = CollectiveError("expected type 0", differ=True)
    places = "chief 0 is at a.py:1 (f), worker 0 is at b.py:2 (f). TensorFlow reports: expected"
    assert places in diagnosis.broken(CLUSTER, differ, "", statuses)


# ---- statuses of others --------------------------------------------------------------------------

FIELDS_OF_ONE = dataclasses.asdict(
    dataclasses.replace(WAITING, waiting_seconds=2.0, location="train.py:4 (main)")
)


@pytest.mark.parametrize(
    "fields", [FIELDS_OF_ONE, {**FIELDS_OF_ONE, "waiting_seconds": 2}, {"call": 1 << 62}]
)
def test_a_status_travels(fields):
    assert Status.from_fields(json.loads(json.dumps(fields))) == Status(**fields)


NO_FIELDS = [
    *({"state": "bogus"}, {"state": 1}, {"location": None}, {"more": 1}, {1: 1}, {"call": True}),
    *({"waiting_seconds": value} for value in (float("nan"), float("inf"), -1.0, (1 << 62) + 1)),
    *({"collectives_entered": -1}, {"collectives_entered": 1e3}, {"python_collective": 10**30}),
]


@pytest.mark.parametrize("fields", [None, [], "lost", *NO_FIELDS], ids=str)
def test_what_is_no_status(fields):
    if isinstance(fields, dict):
        fields = FIELDS_OF_ONE | fields
    with pytest.raises(diagnosis.INVALID):
        Status.from_fields(fields)


def test_texts_of_others_are_one_line():
    status = Status.from_fields(
        FIELDS_OF_ONE | {"why": "a\nb\x1b[2J\ud800c", "location": "x" * 10**6}
    )
    assert status.why == "a?b?[2J?c" and len(status.location) < 5000
