"""Silent workers that have stopped, and those that only the health monitor does not hear."""

import pytest

from tf_adasum.health import heartbeat_detector


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(heartbeat_detector.time, "monotonic", lambda: now[0])
    return now


def test_silence_is_a_stop_where_nothing_ends(clock):
    judge = heartbeat_detector.HeartbeatDetector(30.0)
    judge.note(5)
    judge.note(5)
    assert not judge.has_stopped(1, silent=30.0, waits=30.0)
    assert judge.has_stopped(1, silent=31.0, waits=0.0)
    assert judge.silent_but_active == set()


def test_silence_is_none_while_collectives_end(clock):
    judge = heartbeat_detector.HeartbeatDetector(30.0)
    judge.note(5)
    judge.note(6)
    assert not judge.has_stopped(1, silent=31.0, waits=0.0)
    assert judge.silent_but_active == {1}
    clock[0] += 40.0
    assert not judge.has_stopped(1, silent=71.0, waits=20.0), "it is known to work"
    assert judge.has_stopped(1, silent=71.0, waits=31.0)
    assert judge.has_stopped(2, silent=31.0, waits=0.0), "nothing is known of it"
    assert not judge.has_stopped(1, silent=1.0, waits=0.0)
    assert judge.silent_but_active == set(), "it is heard again"


def test_what_ended_while_all_were_heard_says_nothing(clock):
    judge = heartbeat_detector.HeartbeatDetector(30.0)
    judge.note(None)
    judge.note(5)
    judge.note(None)
    judge.note(9)
    assert judge.has_stopped(1, silent=31.0, waits=0.0)
