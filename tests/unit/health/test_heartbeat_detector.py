"""Silent workers that have stopped, and those that only the health monitor does not hear."""

from tf_adasum.health import heartbeat_detector


def test_a_silent_worker_has_stopped_unless_collectives_end(monkeypatch):
    now = 100.0
    monkeypatch.setattr(heartbeat_detector.time, "monotonic", lambda: now)
    judge = heartbeat_detector.HeartbeatDetector(30.0)
    for ended in (5, 5, None, 9, None):  # what ends while all are heard says nothing
        judge.note(ended)
    assert not judge.has_stopped(1, silent=30.0, waits=30.0)
    assert judge.has_stopped(1, silent=31.0, waits=0.0)
    assert judge.silent_but_active == set()
    judge.note(9)
    judge.note(10)
    assert not judge.has_stopped(1, silent=31.0, waits=0.0)
    assert judge.silent_but_active == {1}
    now += 40.0
    assert not judge.has_stopped(1, silent=71.0, waits=20.0), "it is known to work"
    assert judge.has_stopped(1, silent=71.0, waits=31.0)
    assert judge.has_stopped(2, silent=31.0, waits=0.0), "nothing is known of it"
    assert not judge.has_stopped(1, silent=1.0, waits=0.0)
    assert judge.silent_but_active == set(), "it is heard again"
