"""The health monitor, with threads as workers; worker processes are in tests/multi_worker."""

import contextlib
import itertools
import json
import re
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import pytest
from support.fuzzing import fuzz_settings, json_values
from support.launching import eventually
from support.rendezvous_tasks import SOON, cluster_of, tasks

from tf_adasum.cluster import rendezvous
from tf_adasum.errors import WorkerLostError
from tf_adasum.health import call_site, monitor, reachability
from tf_adasum.health.diagnosis import CollectiveError

MANY = 200


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(monitor, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "_STILL", 0.1)
    monkeypatch.setattr(monitor, "SHORTEST_TIMEOUT", 0.5)
    monkeypatch.setattr(monitor, "monitors", {})


@pytest.fixture
def workers():
    """Returns a function that starts the monitors of so many workers, and waits for their start."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(MANY))

        def start(count, timeout=None, counters=None):
            addresses = [f"127.0.0.1:{port}" for port in range(1, count + 1)]
            met = list(pool.map(lambda each: rendezvous.meet(each, {}, SOON), tasks(count)))
            monitors = []
            for rank in range(count):
                cluster = cluster_of(*addresses, rank=rank)
                one = monitor.HealthMonitor(cluster, met[rank], timeout)
                one.aborted = []
                one.start()
                stack.callback(pool.submit, one.stop)
                one.started((counters or {}).get(rank, lambda: (0, 0, 0)), one.aborted.append)
                monitors.append(one)
            first, all_run = monitors[0], ["running"] * (count - 1)
            eventually(lambda: [each.state for each in first._statuses.values()] == all_run)
            return monitors

        yield start


@pytest.mark.parametrize(
    ("timeout", "limit"), [(5, 10), (30, 15), (60, 30), (300, 30), (600, 30), (1200, 60)]
)
def test_a_timeout_like_the_default_changes_nothing_for_silent_workers(monkeypatch, timeout, limit):
    monkeypatch.setattr(monitor, "SHORTEST_TIMEOUT", 10.0)
    assert monitor.silence_limit(timeout) == limit


def in_a_collective():
    """Counters of a worker that waits in its first collective."""
    return 1, 0, 0


def cut(one):
    """End a worker that reports nothing."""
    one._ending = True
    one._send_statuses = lambda: None
    one._thread.join()


@pytest.mark.parametrize("is_closed", [False, True], ids=["full disk", "closed"])
def test_it_continues_where_stderr_cannot_be_written(workers, monkeypatch, is_closed):
    unwritable = open("/dev/full", "w", buffering=1)
    if is_closed:
        unwritable.close()
    monkeypatch.setattr(sys, "stderr", unwritable)
    server, client = workers(2)
    observe, errors = server._observe, [RuntimeError("once")]

    def fails_once():
        if errors:
            raise errors.pop()
        observe()

    monkeypatch.setattr(server, "_observe", fails_once)
    eventually(lambda: not errors)
    monitor.say("an unauthenticated client")
    cut(client)
    server._update_status(in_call=1)
    eventually(lambda: server.aborted)
    assert "worker 1 (127.0.0.1:2) was lost" in server.cause and server._thread.is_alive()
    with contextlib.suppress(OSError):
        unwritable.close()


def test_an_orderly_end_is_none_of_others_business(workers):
    monitors = workers(3)
    monitors[1].stop()
    monitors[0].stop()
    time.sleep(1)
    assert monitors[2].cause is None


@pytest.mark.parametrize("silent", [0, 1])
def test_a_silent_worker_that_takes_part_is_not_lost(workers, monkeypatch, silent):
    ended = itertools.count(1)
    monitors = workers(2, timeout=1.0, counters={1 - silent: lambda: (0, next(ended), 0)})
    one, other = monitors[1 - silent], monitors[silent]
    one._update_status(in_call=1)
    monkeypatch.setattr(other, "_send_statuses", lambda: None)
    monkeypatch.setattr(other._heartbeats, "limit", 100.0)
    eventually(lambda: one._heartbeats.silent_but_active)
    time.sleep(1)
    assert one.cause is None
    one._counters[0] = lambda: (0, 10**7, 0)
    time.sleep(1)
    assert one.cause is None, "nobody waits"
    one.status = one.status.__class__("running", in_call=1, waiting_seconds=0.9)
    monkeypatch.setattr(one, "_update_status", lambda **fields: None)
    eventually(lambda: one.cause)
    assert f"worker {silent} (127.0.0.1:{silent + 1}) was lost: it has sent nothing" in one.cause


def test_one_that_was_stopped_itself_does_not_blame_the_others(workers, monkeypatch):
    server, client = workers(2, timeout=2.0)
    monkeypatch.setattr(client._heartbeats, "limit", 100.0)  # or it would give up
    observe, pauses = server._observe, iter([1.5])
    monkeypatch.setattr(server, "_observe", lambda: time.sleep(next(pauses, 0)) or observe())
    time.sleep(3)
    assert next(pauses, None) is None and server.cause is None


def raises(one, error, collective_error=None):
    """Let a call of this worker raise an error; return what is raised."""
    with pytest.raises(BaseException) as raised, one.call(lambda error: collective_error):
        raise error
    return raised.value


def test_an_exception_on_all_workers_is_just_that(workers):
    monitors, error = workers(2), ValueError("the same")
    assert [raises(one, error) for one in monitors] == [error, error]
    time.sleep(0.5)
    assert [one.cause for one in monitors] == [None, None]
    of_nobody = OSError("of nobody")
    assert raises(monitors[0], of_nobody, CollectiveError()) is of_nobody


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError("no rows"), SystemExit(0), KeyboardInterrupt()])
def test_what_tensorflow_raises_meanwhile_is_the_failure_of_another(workers, failing, error):
    monitors = workers(3)
    raises(monitors[failing], error)
    monitors.pop(failing).stop()
    for one in monitors:
        lost = raises(one, OSError("what TensorFlow raises"), CollectiveError("Socket closed"))
        assert isinstance(lost, WorkerLostError)
        assert re.search(f"worker {failing} .*{type(error).__name__}", str(lost))


def test_what_a_worker_has_sent_is_read_before_its_end(workers, monkeypatch):
    server, client = workers(2)
    with monkeypatch.context() as busy:
        busy.setattr(server._met, "receive", list)
        raises(client, ValueError("no rows"))
        client.stop()
        eventually(lambda: not server._met.connections[1].is_open)
        server._observe()
    lost = raises(server, OSError("what TensorFlow raises"), CollectiveError("Socket closed"))
    assert "worker 1 " in str(lost) and "ValueError: no rows" in str(lost)


def test_what_nobody_knows_the_cause_of_is_reported_as_tensorflow_does(workers, monkeypatch):
    monkeypatch.setattr(reachability, "SECONDS_TO_CONNECT", 0.1)
    monitors = workers(2)
    lost = raises(monitors[0], OSError("of TensorFlow"), CollectiveError("Socket closed"))
    assert isinstance(lost, WorkerLostError)
    why = "worker 0 .* cannot reach worker 1 .*: Connection refused, and .*: Socket closed. Restart"
    assert re.search(why, str(lost))
    monitors[1]._update_status(in_call=1)
    eventually(lambda: monitors[1].aborted)
    assert monitors[1].cause == monitors[0].cause, "it could not continue either"


def test_a_connection_is_tried_while_all_wait(workers, monkeypatch):
    monkeypatch.setattr(monitor, "_TRY", 0.1)
    monkeypatch.setattr("tf_adasum.health.diagnosis.ALL_WAITING_GRACE", 0.3)
    monkeypatch.setattr("tf_adasum.health.diagnosis.UNREACHABLE_SECONDS", 1.0)
    monkeypatch.setattr(call_site, "of_thread", lambda _: (1, "train.py:4 (main)"))
    monitors = workers(2, counters=dict.fromkeys([0, 1], in_a_collective))
    eventually(lambda: all(one.aborted for one in monitors))
    assert "worker 0 (127.0.0.1:1) cannot reach worker 1 (127.0.0.1:2): " in monitors[0].cause


def test_a_start_that_comes_too_late(workers):
    monitors = workers(2)
    cut(monitors[1])
    monitors[0]._update_status(state="starting")
    eventually(lambda: monitors[0].cause)
    with pytest.raises(WorkerLostError, match="worker 1"):
        monitors[0].started(in_a_collective, monitors[0].aborted.append)


def test_a_worker_sends_its_own_status_alone(workers):
    monitors = workers(3)
    forged = {"status": {"state": "running"}, "statuses": {"2": {"state": "lost"}}}
    monitors[1]._met.send(forged)
    monitors[0]._update_status(in_call=1)
    time.sleep(0.3)
    assert monitors[0]._statuses[2].state == "running" and monitors[0].cause is None


def test_worker_0_has_time_for_its_own_work(workers, monkeypatch):
    """CPU seconds of its two threads, and what it sends, while many workers wait."""
    monkeypatch.setattr(monitor, "HEARTBEAT_SECONDS", 1.0)
    monkeypatch.setattr(reachability.Reachability, "try_now_and_then", lambda self: None)
    monkeypatch.setattr(call_site, "of_thread", lambda _: (1, "train.py:4 (main)"))
    first, *_ = workers(MANY, counters=dict.fromkeys(range(MANY), in_a_collective))
    eventually(lambda: first.status.waiting_seconds)
    sent, send = [], first._met.send
    monkeypatch.setattr(first._met, "send", lambda value: sent.append(value) or send(value))
    threads = first._thread, first._met.server._thread
    clocks = [time.pthread_getcpuclockid(each.ident) for each in threads]
    begun, used = time.monotonic(), sum(map(time.clock_gettime, clocks))
    time.sleep(4)
    used = sum(map(time.clock_gettime, clocks)) - used
    assert used <= 0.1 * (time.monotonic() - begun)
    assert max(len(json.dumps(value)) for value in sent) < 1 << 13
    assert len(first._heard) == MANY - 1 and min(first._heard.values()) > begun


# What a process may send that is wrong, of an older version, or evil.
ANYTHING, TEXTS = json_values(), st.text(max_size=20)
NUMBERS = st.sampled_from([0, 1, 2, 200.0, 1 << 62, 10**400]) | st.integers() | st.floats()
COUNTS = "call", "in_call", "collectives_entered", "python_collective", "waiting_seconds"
STATES = st.sampled_from(["starting", "running", "failed", "ended", "lost", "aborted"])
FIELDS = {"state": STATES, "why": TEXTS, "location": TEXTS, **dict.fromkeys(COUNTS, NUMBERS)}
STATUS = st.fixed_dictionaries({}, optional=FIELDS) | ANYTHING
RANKS = st.lists(st.integers(-1, 3), max_size=3) | ANYTHING
SECONDS = st.sampled_from(["0.0", "3.5", "200", "-1", "nan", "1e999", ""])
STATUSES = st.lists(st.tuples(STATUS, st.dictionaries(SECONDS, RANKS)), max_size=3) | ANYTHING
MESSAGE = st.fixed_dictionaries(
    {}, optional={"status": STATUS, "statuses": STATUSES, "calls": ANYTHING}
)
OWN = st.sampled_from([{"in_call": 1, "call": 3, "waiting_seconds": n} for n in (0.0, 2.0, 1e4)])


def alone(rank):
    """Return one of three monitors, without a thread; a function that lets it receive a message;
    what it refuses, and what it sends."""
    refused, sent = [], []
    channel = types.SimpleNamespace(connections={}, send=sent.append)
    one = monitor.HealthMonitor(cluster_of("a:1", "b:2", "c:3", rank=rank), channel)

    def receive(sender, message):
        channel.receive = lambda: [(sender, message)]
        with mock.patch.object(monitor, "hint", refused.append):
            one._receive_messages()

    return one, receive, refused, sent


NO_STATUSES = [
    {},
    [],
    "status",
    {"status": {"state": 1}},
    {"status": {"waiting_seconds": float("inf")}},
    {"statuses": 1},
    {"statuses": [[{}, {"0.0": ["1"]}]]},
    {"statuses": [[{}, {"0.0": [True]}]]},
    {"statuses": [[{}, {"0.0": [1, 3]}]]},
    {"statuses": [[{}, {"0.0": [-1]}]]},
    {"statuses": [[{"state": "lost"}, {"1e400": [1]}]]},
    {"statuses": [[{"state": "lost"}]]},
]


@pytest.mark.parametrize("message", NO_STATUSES, ids=lambda message: str(message)[:50])
@pytest.mark.parametrize(("rank", "sender"), [(0, 1), (1, 0)])
def test_nonsense_from_a_worker_is_refused(message, rank, sender):
    one, receive, refused, _ = alone(rank)
    receive(sender, message)
    assert refused and not one._statuses


@fuzz_settings(500)
@hypothesis.given(st.integers(0, 2), OWN, st.booleans(), st.lists(MESSAGE, max_size=4))
def test_fuzz_no_message_stops_the_monitor(rank, own, is_broken, messages):
    one, receive, _, sent = alone(rank)
    one._is_broken = is_broken
    one._update_status(state="running")
    senders = itertools.cycle([1, 2] if rank == 0 else [0])
    for sender, message in zip(senders, messages, strict=False):
        receive(sender, json.loads(json.dumps(message)))
        one._observe()
        one._update_status(**own)
        one._send_statuses()
        one._diagnose()
    assert set(one._statuses) <= {0, 1, 2} - {rank}
    lines = json.dumps(sent)
    assert "NaN" not in lines and "Infinity" not in lines
    assert one.cause is None or (one.cause.isprintable() and len(one.cause) < 20_000)
