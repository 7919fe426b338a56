"""What a worker makes of the others' statuses."""

import dataclasses
import json

import hypothesis
import hypothesis.strategies as st
import pytest

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health.diagnosis import (
    CUT,
    DIFFERENT,
    GRACE,
    GRACE_OF_ALL,
    CollectiveError,
    Status,
    broken,
    failure,
    notice,
    what_to_do,
)

CLUSTER = Cluster(("a:1", "b:2", "c:3"), ("chief 0", "worker 0", "worker 1"), 1)
PATIENCE = 100.0


def judged(own=None, is_broken=False, **others):
    statuses = {1: own or Status("running")}
    statuses |= {int(name[1:]): status for name, status in others.items()}
    return failure(CLUSTER, statuses, PATIENCE, is_broken)


INSIDE = Status("running", call=3, inside=1)
WAITING = Status("running", call=3, inside=1, entered=7, waits=GRACE)


@pytest.mark.parametrize("own", [Status(), Status("running"), WAITING])
def test_nobody_is_to_blame_while_all_run(own):
    assert judged(own, _0=Status("running"), _2=WAITING) is None


def test_a_lost_worker_ends_everything_at_once():
    assert judged(Status("running"), _2=Status("lost")) is None, "not where it is not needed"
    cause = judged(INSIDE, _0=Status("running"), _2=Status("lost", "it is silent"))
    assert cause.startswith("worker 1 (c:3) was lost: it is silent. Restart all workers")


def test_all_give_up_for_the_same_reason():
    assert judged(INSIDE, _2=Status("aborted", "worker 1 was lost")) == "worker 1 was lost"
    of_this_one = "worker 0 (b:2) was lost: it is silent"
    cause = judged(INSIDE, _2=Status("aborted", of_this_one))
    assert cause == f"worker 1 (c:3) cannot continue: {of_this_one}", "whoever reads it is not lost"


def test_a_failure_matters_to_those_who_wait_in_the_same_call():
    failed = Status("failed", "ValueError: no", call=3)
    assert judged(WAITING, _0=failed).startswith("chief 0 (a:1) failed: ValueError: no.")
    assert judged(dataclasses.replace(WAITING, waits=GRACE / 2), _0=failed) is None
    assert judged(dataclasses.replace(WAITING, call=4), _0=failed) is None, "they go on together"
    outside = dataclasses.replace(WAITING, state="failed", inside=0)
    assert judged(outside, _0=failed) is None, "it failed on both, and both go on"


def test_an_end_matters_to_those_who_wait():
    ended = Status("ended", call=3)
    assert judged(Status("running"), _2=ended) is None, "worker 0 saves the model"
    cause = judged(WAITING, _2=ended)
    assert cause.startswith("worker 1 (c:3) has ended, and worker 0 waits for it.")
    cause = judged(WAITING, _2=Status("ended", "KeyError: 1"))
    assert cause.startswith("worker 1 (c:3) has ended: KeyError: 1. Correct")


def test_an_end_matters_at_once_where_a_collective_has_raised():
    ended = Status("ended", call=3)
    assert judged(INSIDE, _2=ended) is None
    cause = judged(INSIDE, is_broken=True, _2=ended)
    assert cause.startswith("worker 1 (c:3) has ended, and worker 0 waits for it.")
    assert judged(INSIDE, is_broken=True, _2=INSIDE) is None, "nobody is to blame yet"


def test_a_failure_is_named_where_a_collective_has_raised():
    failed = Status("failed", "ValueError: no", call=3)
    aborted = Status("aborted", "the connection broke")
    assert judged(INSIDE, _0=aborted, _2=failed) == "the connection broke"
    cause = judged(INSIDE, is_broken=True, _0=aborted, _2=failed)
    assert cause.startswith("worker 1 (c:3) failed: ValueError: no."), "it knows more"


def test_a_link_that_is_cut():
    waiting = dataclasses.replace(WAITING, waits=CUT)
    cut = dataclasses.replace(waiting, unreachable="worker 1 (c:3): no answer")
    cause = judged(waiting, _0=cut, _2=waiting)
    assert cause.startswith("chief 0 (a:1) cannot reach worker 1 (c:3): no answer. Restart all")
    in_python = dataclasses.replace(cut, of_python=4)
    short = dataclasses.replace(waiting, waits=GRACE_OF_ALL)
    assert judged(short, _0=in_python, _2=waiting) is None, "it may heal"
    assert judged(waiting, _0=cut, _2=Status("running")) is None, "it may be busy"
    said = notice(CLUSTER, {0: cut, 1: waiting, 2: waiting})
    assert said.endswith("(chief 0 (a:1) cannot reach worker 1 (c:3): no answer)")


def test_what_tensorflow_alone_knows():
    reset = CollectiveError("Connection reset by peer", ("worker 1", "worker 0"))
    assert broken(CLUSTER, reset, "", {}).startswith(
        "the connection between worker 0 (b:2) and worker 1 (c:3) broke: Connection reset by peer. "
        "Restart all"
    )
    assert "between worker 0 (b:2) and others broke" in broken(
        CLUSTER, CollectiveError("no"), "", {}
    )
    assert "worker 0 (b:2) cannot reach chief 0 (a:1): no answer" in broken(
        CLUSTER, reset, "chief 0 (a:1): no answer", {}
    )
    two = Cluster(("a:1", "b:2"), ("worker 0", "worker 1"), 1)
    assert "between worker 1 (b:2) and worker 0 (a:1) broke" in broken(
        two, CollectiveError("no"), "", {}
    )
    statuses = {1: Status("running", at="b.py:2 (f)"), 0: Status("running", at="a.py:1 (f)")}
    differ = broken(CLUSTER, CollectiveError("expected type 0", differ=True), "", statuses)
    assert "chief 0 is at a.py:1 (f), worker 0 is at b.py:2 (f). TensorFlow reports" in differ


def test_patience_ends():
    patient = dataclasses.replace(WAITING, waits=PATIENCE)
    elsewhere = Status("running", at="train.py:4 (main)")
    assert judged(dataclasses.replace(WAITING, waits=PATIENCE - 1), _0=elsewhere) is None
    cause = judged(patient, _0=elsewhere, _2=patient)
    assert "has waited 100 s for chief 0 (a:1), which is at train.py:4 (main)." in cause
    assert "worker 1" not in cause
    earlier = dataclasses.replace(patient, entered=6, waits=5.0)
    assert "for worker 1 (c:3)" in judged(patient, _2=earlier), "waits in an earlier collective"


def test_all_wait_for_each_other():
    large = dataclasses.replace(WAITING, waits=DIFFERENT - 1)
    left_already = dataclasses.replace(large, of_python=4, entered=8)
    assert judged(large, _0=left_already, _2=large) is None, "its last part may still travel"
    waiting = dataclasses.replace(WAITING, waits=DIFFERENT)
    in_python = dataclasses.replace(waiting, of_python=4, at="callback.py:3 (on_epoch_end)")
    assert judged(waiting, _0=waiting, _2=waiting) is None
    cause = judged(waiting, _0=in_python, _2=waiting)
    assert "chief 0 is at callback.py:3 (on_epoch_end), worker 0 is at" in cause
    assert judged(waiting, _0=in_python, _2=Status("running")) is None, "may still come"
    assert judged(waiting, _0=in_python) is None, "nothing is known of worker 1"
    assert judged(waiting, _0=dataclasses.replace(in_python, waits=GRACE), _2=waiting) is None
    long = dataclasses.replace(WAITING, waits=PATIENCE)
    assert "have not made the same calls" in judged(long, _0=long, _2=long)


def test_the_notice_names_who_is_awaited():
    statuses = {1: WAITING, 0: Status("running", at="x.py:1 (f)"), 2: WAITING}
    assert notice(CLUSTER, statuses) == (
        "worker 0 has waited 2 s for chief 0 (a:1), which is at x.py:1 (f)"
    )


def test_a_status_travels():
    fields = json.loads(json.dumps(dataclasses.asdict(WAITING)))
    assert Status.of(fields) == WAITING
    assert Status.of({**fields, "waits": 2}) == WAITING, "JSON knows no difference"


@pytest.mark.parametrize(
    "fields", [None, [], "lost", {"state": 1}, {"rank": 1}, {"call": True}, {"at": None}]
)
def test_nonsense_is_no_status(fields):
    assert Status.of(fields) is None


def test_the_advice_fits():
    assert "tf-adasum-launch" not in what_to_do({}) and what_to_do({}).endswith(" backup.")
    assert "(tf-adasum-launch --max-restarts restarts them" in what_to_do(
        {"TF_ADASUM_LAUNCHER": "1"}
    )


STATUSES = {"state": "running", "why": "", "call": 1, "inside": 1, "entered": 7, "of_python": 0}
STATUSES |= {"waits": 0.5, "at": "train.py:4 (main)"}


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "bogus"},
        {"state": ""},
        {"waits": float("nan")},
        {"waits": float("inf")},
        {"waits": -1.0},
        {"waits": 10**400},
        {"entered": -1},
        {"entered": 1e3},
        {"of_python": 10**30},
        {"call": True},
        {"more": 1},
        {1: 1},
    ],
    ids=str,
)
def test_what_is_no_status(fields):
    assert Status.of(STATUSES) == Status(**STATUSES)
    assert Status.of(STATUSES | fields) is None


def test_texts_of_others_are_one_line():
    status = Status.of(STATUSES | {"why": "a\nb\x1b[2J\ud800c", "at": "x" * 10**6})
    assert status.why == "a b [2J c" and len(status.at) < 5000


# What a process may send that is wrong, of an older version, or evil.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, 1, 2, 200.0, 1 << 62, 10**400])
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(["starting", "running", "failed", "ended", "lost", "aborted"]),
        "why": st.text(max_size=20),
        "call": NUMBERS,
        "inside": NUMBERS,
        "entered": NUMBERS,
        "of_python": NUMBERS,
        "waits": NUMBERS,
        "at": st.text(max_size=20),
    },
)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(of_others=st.lists(FIELDS | JSON, min_size=2, max_size=2))
def test_fuzz_no_status_stops_a_diagnosis(of_others):
    read = [Status.of(json.loads(json.dumps(fields))) for fields in of_others]
    others = {f"_{rank}": one for rank, one in zip((0, 2), read, strict=True) if one}
    for own in INSIDE, WAITING, Status(), dataclasses.replace(WAITING, waits=1e4):
        for is_broken in False, True:
            cause = judged(own, is_broken, **others)
            assert cause is None or (cause.isprintable() and len(cause) < 20_000)
    for one in read:
        assert one is None or Status.of(json.loads(json.dumps(dataclasses.asdict(one)))) == one
