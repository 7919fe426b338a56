"""The health monitor, with threads as workers; worker processes are in tests/multi_worker."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import hypothesis
import hypothesis.strategies as st
import pytest

from tf_adasum.cluster import json_lines, start_timeout
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import WorkerLostError
from tf_adasum.health import call_site, connections, monitor, reachability
from tf_adasum.health.diagnosis import CollectiveError

SOON = 20.0  # seconds, on a busy machine


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(monitor, "SECONDS_BETWEEN_MESSAGES", 0.05)
    monkeypatch.setattr(monitor, "_STILL", 0.1)
    monkeypatch.setattr(monitor, "SHORTEST_TIMEOUT", 0.5)
    monkeypatch.setattr(monitor, "_monitors", {})


@pytest.fixture
def workers():
    """Returns a function that starts the monitors of so many workers."""
    with contextlib.ExitStack() as stack:

        def start(count, timeout=None):
            addresses = tuple(f"127.0.0.1:{port}" for port in range(1, count + 1))
            names = tuple(f"worker {rank}" for rank in range(count))
            server = connections.Server("127.0.0.1", count)
            monitors = []
            for rank in range(count):
                channel = connections.Client("127.0.0.1", server.offer, rank) if rank else server
                one = monitor.HealthMonitor(Cluster(addresses, names, rank), channel, timeout)
                one.aborted = []
                one.start()
                stack.callback(one.stop)
                monitors.append(one)
            return monitors

        yield start


def up(monitors, counters=lambda: (0, 0, 0)):
    for one in monitors:
        one.started(counters, one.aborted.append)


def eventually(condition):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.02)


def state_of_1(server):
    return server._statuses[1].state if 1 in server._statuses else None


def cut(one):
    """Ends a worker without a word."""
    one._ending = True
    one._speak = lambda: None
    one._thread.join()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_process_that_has_ended_is_lost_to_all(workers, lost, capfd):
    monitors = workers(3)
    up(monitors)
    eventually(lambda: len(monitors[0]._statuses) == 2)
    cut(monitors[lost])
    time.sleep(0.5)
    assert not any(one.cause for one in monitors), "nobody needs it"
    for rank, one in enumerate(monitors):
        if rank != lost:
            one._say(inside=1)
            eventually(lambda one=one: one.aborted)
            assert f"worker {lost} (127.0.0.1:{lost + 1}) was lost" in one.cause
            assert one.aborted == [one.cause], "once"
    assert "tf_adasum: worker" in capfd.readouterr().err


@pytest.fixture(params=["full disk", "closed"])
def unwritable(request):
    stream = open("/dev/full", "w", buffering=1)
    if request.param == "closed":
        stream.close()
    yield stream
    with contextlib.suppress(OSError):
        stream.close()


def test_it_goes_on_where_stderr_cannot_be_written(workers, monkeypatch, unwritable):
    monkeypatch.setattr(sys, "stderr", unwritable)
    monitors = workers(2)
    up(monitors)
    eventually(lambda: state_of_1(monitors[0]) == "running")
    failures = iter([RuntimeError("once")])
    listen = monitors[0]._listen
    monkeypatch.setattr(monitors[0], "_listen", lambda: raise_next(failures) or listen())
    monitors[0]._channel.refusals.say("an unauthenticated client")
    cut(monitors[1])
    monitors[0]._say(inside=1)
    eventually(lambda: monitors[0].aborted)
    assert "worker 1 (127.0.0.1:2) was lost" in monitors[0].cause
    assert monitors[0]._thread.is_alive() and next(failures, None) is None


def raise_next(failures):
    for failure in failures:
        raise failure


def test_an_orderly_end_is_none_of_others_business(workers):
    monitors = workers(3)
    up(monitors)
    monitors[1].stop()
    monitors[0].stop()
    time.sleep(1)
    assert monitors[2].cause is None


def test_a_silent_worker_is_lost(workers, monkeypatch):
    monitors = workers(2, timeout=1.0)
    up(monitors)
    eventually(lambda: state_of_1(monitors[0]) == "running")
    monkeypatch.setattr(monitors[1], "_speak", lambda: None)
    monitors[0]._say(inside=1)
    eventually(lambda: monitors[0].cause)
    assert re.search("worker 1 .* was lost: it has sent nothing for", monitors[0].cause)


@pytest.mark.parametrize("silent", [0, 1])
def test_a_silent_worker_that_takes_part_is_not_lost(workers, monkeypatch, silent, capfd):
    monitors = workers(2, timeout=1.0)
    counts = iter(range(1, 10**6))
    goes_on = [True]
    up(monitors, counters=lambda: (0, next(counts) if goes_on else 10**7, 0))
    eventually(lambda: state_of_1(monitors[0]) == "running")
    one, other = monitors[1 - silent], monitors[silent]
    one._say(inside=1)
    monkeypatch.setattr(other, "_speak", lambda: None)
    monkeypatch.setattr(other._heartbeats, "limit", 100.0)
    eventually(lambda: one._heartbeats.unheard)
    time.sleep(1)
    assert one.cause is None
    assert capfd.readouterr().err.count(" s, but it takes part in collectives") == 1
    goes_on.clear()
    time.sleep(1)
    assert one.cause is None, "nobody waits"
    one._own = one._own.__class__("running", inside=1, waits=1.0)
    monkeypatch.setattr(one, "_say", lambda **fields: None)
    eventually(lambda: one.cause)
    assert f"worker {silent} (127.0.0.1:{silent + 1}) was lost: it has sent nothing" in one.cause


def _heard(one):
    return [connection.heard for connection in one._channel.connections.values()]


def test_a_new_connection_replaces_a_silent_one(workers, monkeypatch):
    monkeypatch.setattr(connections, "_SECONDS_TO_REPLACE", 0.3)
    monitors = workers(2, timeout=1.0)
    counts = iter(range(1, 10**6))
    up(monitors, counters=lambda: (0, next(counts), 0))
    eventually(lambda: state_of_1(monitors[0]) == "running")
    eventually(lambda: 0 in monitors[1]._statuses and monitors[1]._statuses[0].state == "running")
    lines = [one._channel.connections[1 - rank] for rank, one in enumerate(monitors)]
    for line in lines:  # nothing arrives by it any more
        monkeypatch.setattr(line, "receive", lambda: [])
        monkeypatch.setattr(line, "send", lambda message: None)
    eventually(lambda: monitors[0]._channel.connections[1] is not lines[0])
    begin = time.monotonic()
    for one in monitors:
        eventually(lambda one=one: min(_heard(one)) > begin)
    time.sleep(1)  # longer than silence
    assert not monitors[1]._heartbeats.unheard and not monitors[0]._heartbeats.unheard
    assert [one.cause for one in monitors] == [None, None]


def test_one_that_was_stopped_itself_does_not_blame_the_others(workers, monkeypatch):
    server, client = workers(2, timeout=2.0)
    monkeypatch.setattr(client._heartbeats, "limit", 100.0)  # or it would give up
    up([server, client])
    eventually(lambda: state_of_1(server) == "running")
    stopped = threading.Event()
    original = server._observe

    def stop_once():
        if not stopped.is_set():
            stopped.set()
            time.sleep(1.5)
        original()

    monkeypatch.setattr(server, "_observe", stop_once)
    stopped.wait(SOON)
    time.sleep(2)
    assert server.cause is None


def raising(one, error, collective_error=None):
    with pytest.raises(type(error)), one.call(lambda error: collective_error):
        raise error


def test_the_exception_of_another_worker_ends_the_wait(workers, monkeypatch):
    monkeypatch.setattr("tf_adasum.health.diagnosis.GRACE", 0.2)
    monitors = workers(2)
    up(monitors[1:])
    up(monitors[:1], counters=lambda: (1, 0, 0))  # in a collective
    monkeypatch.setattr(call_site, "of_thread", lambda _: (1, "train.py:4 (main)"))
    with pytest.raises(WorkerLostError, match=r"worker 1 .* failed: ValueError: no rows"):
        with monitors[0].call(lambda error: CollectiveError()):
            raising(monitors[1], ValueError("no rows"))
            eventually(lambda: monitors[0].aborted)
            raise OSError("what TensorFlow raises then")


def test_an_exception_on_all_workers_is_just_that(workers):
    monitors = workers(2)
    up(monitors)
    for one in monitors:
        raising(one, ValueError("the same"))
    time.sleep(0.5)
    assert [one.cause for one in monitors] == [None, None]
    raising(monitors[0], OSError("of nobody"), collective_error=CollectiveError())


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError("no rows"), SystemExit(0), KeyboardInterrupt()])
def test_what_tensorflow_raises_meanwhile_is_the_failure_of_another(workers, failing, error):
    monitors = workers(3)
    up(monitors)
    eventually(lambda: len(monitors[0]._statuses) == 2)
    with pytest.raises(type(error)), monitors[failing].call(lambda error: None):
        raise error
    monitors[failing].stop()
    for rank, one in enumerate(monitors):
        if rank != failing:
            with pytest.raises(WorkerLostError, match=f"worker {failing} .*{type(error).__name__}"):
                with one.call(lambda error: CollectiveError("Socket closed")):
                    raise OSError("what TensorFlow raises")


def test_what_nobody_knows_the_cause_of_is_told_as_tensorflow_does(workers, monkeypatch):
    monkeypatch.setattr(reachability, "SECONDS_TO_CONNECT", 0.1)
    monitors = workers(2)
    up(monitors)
    said = (
        "worker 0 .* cannot reach worker 1 .*: Connection refused, and .*: Socket closed. Restart"
    )
    with pytest.raises(WorkerLostError, match=said):
        with monitors[0].call(lambda error: CollectiveError("Socket closed")):
            raise OSError("what TensorFlow raises")
    monitors[1]._say(inside=1)
    eventually(lambda: monitors[1].aborted)
    assert monitors[1].cause == monitors[0].cause, "it could not continue either"


def test_a_connection_is_tried_while_all_wait(workers, monkeypatch):
    monkeypatch.setattr(monitor, "_TRY", 0.1)
    monkeypatch.setattr("tf_adasum.health.diagnosis.GRACE_OF_ALL", 0.3)
    monkeypatch.setattr("tf_adasum.health.diagnosis.CUT", 1.0)
    monkeypatch.setattr(call_site, "of_thread", lambda _: (1, "train.py:4 (main)"))
    monitors = workers(2)
    up(monitors, counters=lambda: (1, 0, 0))
    eventually(lambda: all(one.aborted for one in monitors))
    assert "worker 0 (127.0.0.1:1) cannot reach worker 1 (127.0.0.1:2): " in monitors[0].cause


def test_who_does_not_come_is_named(workers, monkeypatch):
    monitors = workers(2, timeout=2.0)
    up(monitors[1:])
    up(monitors[:1], counters=lambda: (1, 0, 0))
    monkeypatch.setattr(call_site, "of_thread", lambda _: (1, "train.py:4 (main)"))
    eventually(lambda: monitors[0].aborted)
    assert re.search(r"waited \d+ s for worker 1 .*at train.py:4 \(main\)", monitors[0].cause)


def test_progress_is_no_wait(workers, monkeypatch):
    monitors = workers(2, timeout=2.0)
    counts = iter(range(1, 10**6))
    up(monitors, counters=lambda: (next(counts), 0, 0))  # in one collective after the other
    monkeypatch.setattr(call_site, "of_thread", lambda _: (1, ""))
    time.sleep(3)
    assert [one.cause for one in monitors] == [None, None]


def test_a_start_that_comes_too_late(workers):
    monitors = workers(2)
    cut(monitors[1])
    eventually(lambda: monitors[0].cause)
    with pytest.raises(WorkerLostError, match="worker 1"):
        up(monitors[:1])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff\n",
        b"[]\n",
        b'{"rank": 1}\n',
        b'{"rank": 1, "token": "x"}\n',
        b'{"rank": 1, "token": "\\ud800"}\n',
        b"[" * 99999,
    ],
)
def test_unauthenticated_are_left_outside(workers, line):
    monitors = workers(2)
    with socket.create_connection(("127.0.0.1", monitors[0]._channel.offer["port"])) as client:
        client.sendall(line)
    up(monitors)
    eventually(lambda: state_of_1(monitors[0]) == "running")
    assert list(monitors[0]._channel.connections) == [1]


NO_STATUSES = [
    {},
    {"status": None},
    {"status": {"state": 1}},
    {"status": {"waits": float("inf")}},
    {"statuses": []},
    {"statuses": {"x": 1, "7": {}, "-1": {}, "9" * 4000: {}}},
    {"statuses": {"1": {"state": "lost", "waits": 1e400}}},
]


@pytest.mark.parametrize("message", NO_STATUSES, ids=lambda message: str(message)[:50])
def test_nonsense_from_a_worker_is_refused(workers, message, capfd):
    monitors = workers(3)
    up(monitors)
    eventually(lambda: len(monitors[0]._statuses) == 2)
    for one in monitors:
        one._say(inside=1)
    refused = []
    for one in monitors:
        one._channel.refusals.say = refused.append
    for connection in monitors[1]._channel, monitors[0]._channel.connections[2]:
        eventually(lambda connection=connection: not unsent(connection))
        connection.send(message)
    eventually(lambda: len(refused) >= 2)
    assert all(one._thread.is_alive() and one.cause is None for one in monitors)
    assert "Traceback" not in capfd.readouterr().err
    cut(monitors[1])
    eventually(lambda: monitors[0].cause and monitors[2].cause)  # none of them is blind


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
STATUS = st.fixed_dictionaries(
    {"state": st.sampled_from(["running", "failed", "ended", "aborted"]) | ANYTHING},
    optional=dict.fromkeys(("why", "call", "entered", "waits", "at", "more"), ANYTHING),
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "status": STATUS | ANYTHING,
        "statuses": st.dictionaries(st.sampled_from(["0", "1", "2", "3", "-1", "²"]), STATUS)
        | ANYTHING,
    },
)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(rank=st.integers(0, 2), messages=st.lists(MESSAGE, max_size=4))
def test_fuzz_whatever_is_heard_the_watch_goes_on(rank, messages):
    cluster = Cluster(("a:1", "b:2", "c:3"), ("worker 0", "worker 1", "worker 2"), rank)
    said, sent = [], []
    channel = types.SimpleNamespace(
        connections={}, refusals=types.SimpleNamespace(say=said.append), send=sent.append
    )
    one = monitor.HealthMonitor(cluster, channel)
    one._say(state="running", inside=1)
    senders = [1, 2] if rank == 0 else [0]
    for number, message in enumerate(messages):
        arrived = json_lines.decode(json_lines.encode(message).strip())
        one._hear(senders[number % len(senders)], arrived)
        one._observe()
        one._speak()
        one._diagnose()
    assert set(one._statuses) <= {0, 1, 2} - {rank}
    for message in sent:
        line = json_lines.encode(message)
        assert b"NaN" not in line and b"Infinity" not in line


def unsent(channel):
    return getattr(channel, "_server", channel)._outgoing


def test_a_worker_speaks_for_itself_alone(workers):
    monitors = workers(3)
    up(monitors)
    eventually(lambda: len(monitors[0]._statuses) == 2)
    forged = {"status": {"state": "running"}, "statuses": {"2": {"state": "lost"}}}
    monitors[1]._channel.send(forged)
    monitors[0]._say(inside=1)
    time.sleep(0.3)
    assert monitors[0]._statuses[2].state == "running" and monitors[0].cause is None


GUARDED = """
import time
from tf_adasum.cluster import json_lines, start_timeout
from tf_adasum.cluster.tasks import Cluster
cluster = Cluster(("h:1", "127.0.0.1:{port}"), ("worker 0", "worker 1"), 0)
with start_timeout.bounded(cluster, {limit}):
    time.sleep({seconds})
print("started")
"""


@pytest.mark.parametrize(
    ("seconds", "launcher", "advice"),
    [(0, "1", ""), (60, "", "Start all workers again."), (60, "1", "tf-adasum-launch ends the")],
)
def test_the_guard_of_the_start(seconds, launcher, advice):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        port = unused.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-c", GUARDED.format(port=port, limit=3, seconds=seconds)],
            env=os.environ | {start_timeout.LAUNCHER: launcher},
            capture_output=True,
            text=True,
            timeout=50,
        )
    if seconds:
        assert ended.returncode == -signal.SIGKILL
        who = f"worker 1 (127.0.0.1:{port})"
        assert (
            f"worker 0 has waited 3 s in TensorFlow's start-up, and {who} cannot be reached any "
            f"more. This worker ends, because TensorFlow would wait forever. {advice}"
        ) in ended.stderr
    else:
        assert (ended.returncode, ended.stdout) == (0, "started\n")


def test_the_guard_ends_with_its_worker():
    command = [sys.executable, "-c", GUARDED.format(port=1, limit=60, seconds=60)]
    worker = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + SOON
    while not (guards := children_of(worker.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.kill()
    worker.wait()
    eventually(lambda: not any(os.path.exists(f"/proc/{guard}/exe") for guard in guards))


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_a_guard_reaches_who_is_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert start_timeout._answers(server.getsockname())
