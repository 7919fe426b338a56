"""The shared store: first in random histories with a simulated clock, then in threads."""

import contextlib
import os
import resource
import socket
import threading
import time
import types
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.fuzzing import fuzz_settings
from support.launching import eventually
from support.pace import PACE

from tf_adasum.cluster import channel as channel_module
from tf_adasum.cluster import store
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.session import REFUSED, UNPROVEN, call, kind_of
from tf_adasum.cluster.session import Session as StoreSession
from tf_adasum.cluster.store import StoreServer
from tf_adasum.cluster.timeouts import LEASE_SECONDS

SOON = 20 * PACE
SECRET = Secret(b"key")
NAMES = st.sampled_from(["1/a", "1/b", "2/a"])
KEYS = st.sampled_from(["result", "statuses", "refused/1/a", "refused/2/a"])


class Leader(store.Leader):
    """Notes what the sessions set, and publishes what a test wants."""

    def __init__(self):
        self.seen, self.changes, self.silent_keys = {}, {}, set()

    def changed(self, key, value, ends):
        self.seen[key] = value

    def authentication_failed(self, rank):
        raise AssertionError

    def silent(self, key, ends):
        assert self.seen[key] is not None
        self.silent_keys.add(key)  # its end follows

    def decide(self, now):
        changes, self.changes = self.changes, {}
        return changes


class Histories(RuleBasedStateMachine):
    """Sessions begin, set their keys, are silent and end, and the leader publishes, in any order.

    The sockets are real; the clock is the test's, and the server serves when the test wants it.
    """

    def __init__(self):
        super().__init__()
        self.now, self.stack = 1000.0, contextlib.ExitStack()
        clock = types.SimpleNamespace(monotonic=lambda: self.now, sleep=lambda seconds: None)
        for module in (store, channel_module):
            self.stack.enter_context(mock.patch.object(module, "time", clock))
        self.stack.enter_context(mock.patch.object(threading.Thread, "start"))
        self.stack.enter_context(mock.patch.object(store.own_address, "of_end", str))
        listener, self.leader = socket.socket(socket.AF_UNIX), Leader()  # which delivers at once
        listener.bind("")
        listener.listen()
        self.address = listener.getsockname()
        self.server = StoreServer(listener, SECRET, threading.Lock(), self.leader, clients=3)
        self.is_handed_over = False
        self.expected = {}  # what the leader has published
        self.sessions = {}  # from names to channels, values and the keys that they see
        self.silent, self.heard = set(), {}

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        return Channel(connection, SECRET, is_server=False)

    def teardown(self):
        for channel, *_ in self.sessions.values():
            channel.close()
        for session in list(self.server._sessions.values()):
            self.server._end(session)
        for each in (self.server._listener, self.server._wakes, self.server._wake):
            each.close()
        self.stack.close()

    def serve(self):
        """Let everything arrive that is on the way, within no time."""
        for _ in range(6):
            self.server.wake()
            self.server._look_at = min(self.server._look_at, self.now)
            self.server._serve_once()
            for channel, _, seen in self.sessions.values():
                for message in channel.receive():
                    if "key" in message and message["value"] is None:
                        seen.pop(message["key"], None)
                    elif "key" in message:
                        seen[message["key"]] = message["value"]
                channel.flush()
        while self.leader.silent_keys:
            name = self.leader.silent_keys.pop()
            assert name in self.silent and not self.is_handed_over
            assert self.now >= self.heard[name] + LEASE_SECONDS
            self.forget(name)
            self.server._serve_once()
            assert self.leader.seen[name] is None, "the end of its process is noticed"

    def forget(self, name):
        self.sessions.pop(name)[0].close()
        self.silent.discard(name)

    @rule(name=NAMES, value=st.integers())
    def begin(self, name, value):
        """A session begins, unless its key has one or the port was handed over."""
        if self.is_handed_over:
            with pytest.raises(ConnectionRefusedError):
                self.connect()
            return
        channel = self.connect()
        self.sessions["new"] = [channel, 0, {}]
        self.serve()
        assert channel.is_authenticated
        new = self.sessions.pop("new")
        if name in self.sessions:
            known = dict(self.leader.seen)
            channel.send({"op": "set", "key": name, "value": -1})
            self.serve()
            channel.receive()
            assert not channel.is_open and self.leader.seen == known
            return
        self.sessions[name] = new
        self.set(name, value)

    @rule(name=NAMES, value=st.integers())
    def set(self, name, value):
        if name in self.sessions and name not in self.silent:
            message = {"op": "set", "key": name, "value": value}
            self.sessions[name][0].send_newest(store.json.dumps(message))
            self.sessions[name][1], self.heard[name] = value, self.now
        self.serve()

    @rule(name=NAMES)
    def end(self, name):
        if name in self.sessions:
            self.forget(name)
        self.serve()

    @rule(name=NAMES)
    def be_silent(self, name):
        self.silent |= {name} & self.sessions.keys()

    @rule(key=KEYS, value=st.none() | st.integers())
    def publish(self, key, value):
        if value is not None or key in self.expected:
            self.leader.changes = {key: value}
            self.expected[key] = value
        if value is None:
            self.expected.pop(key, None)
        self.serve()

    @rule(seconds=st.sampled_from([1, 3]))
    def wait(self, seconds):
        self.now += seconds
        for name, (channel, *_) in self.sessions.items():
            if name not in self.silent:
                channel.send({"op": "heartbeat"})
                self.heard[name] = self.now
        self.serve()

    @rule()
    def wait_for_leases(self):
        for _ in range(3):
            self.wait(LEASE_SECONDS / 2)
        assert self.is_handed_over or not self.silent

    @precondition(lambda self: not self.is_handed_over and self.now > 1030.0)
    @rule()
    def hand_over(self):
        self.is_handed_over = self.server._is_handing_over = True
        self.serve()

    @invariant()
    def the_leader_knows_all_members_and_they_see_what_is_published(self):
        known = {key: value for key, value in self.leader.seen.items() if value is not None}
        expected = {name: value for name, (_, value, _) in self.sessions.items()}
        assert known == expected and self.server.owners.keys() == expected.keys()
        for name, (channel, _, seen) in self.sessions.items():
            assert channel.is_open
            assert seen == {
                key: value
                for key, value in self.expected.items()
                if not key.startswith("refused/") or key == f"refused/{name}"
            }


TestHistories = Histories.TestCase
TestHistories.settings = fuzz_settings(40)


# ---- over connections --------------------------------------------------------------------------


class Recorder(store.Leader):
    """A leader that records what it receives."""

    def __init__(self):
        self.seen, self.more = [], {}

    def changed(self, key, value, ends):
        self.seen.append((key, value, ends))

    def authentication_failed(self, rank):
        self.seen.append((rank, None))

    def decide(self, now):
        more, self.more = self.more, {}
        return {"copy": self.seen[-1][1], **more} if self.seen else more


class Session:
    """A client, with the keys as it sees them."""

    def __init__(self, address, key):
        self.keys, self.is_lost = {}, threading.Event()
        functions = {"deliver": self.keys.__setitem__, "lost": self.is_lost.set}
        self.client = StoreSession(address, key, SECRET, lambda channel: 0, **functions)
        self.client.__enter__()
        self.eventually(copy=0)

    def eventually(self, **expected):
        eventually(lambda: self.keys | expected == self.keys)


@pytest.fixture
def served(monkeypatch):
    """A store with short leases: server, address, leader, and a function that begins a session."""
    monkeypatch.setattr(store, "LEASE_SECONDS", 3 * PACE)
    leader, listener = Recorder(), socket.create_server(("127.0.0.1", 0))
    server = StoreServer(listener, SECRET, threading.Lock(), leader, clients=2)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.ExitStack() as stack:
        stack.callback(server.close, 0.0)

        def begin(key="1"):
            made = Session(address, key)
            stack.callback(made.client.__exit__)
            return made

        yield types.SimpleNamespace(server=server, address=address, leader=leader, begin=begin)


def test_a_silent_session_loses_its_key_and_detects_it(served):
    first, second = served.begin(), served.begin("2")
    first.client.set(0)
    second.client.set(1)
    first.eventually(copy=1)
    second.client.fork_lock.acquire()  # as in a suspended process
    try:
        first.eventually(copy=None)
    finally:
        second.client.fork_lock.release()
    assert second.is_lost.wait(SOON)
    assert not first.is_lost.is_set()


def test_after_the_hand_over_silence_is_no_end_and_the_port_is_free(served):
    own, address = served.begin(), served.address.split(":")
    with socket.create_connection(address) as early:
        own.client.stay()
        served.server.hand_over()
        early.settimeout(SOON)
        with contextlib.suppress(ConnectionResetError):
            while early.recv(1000):  # until it is disconnected
                pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with socket.create_server(("127.0.0.1", int(address[1]))):  # as TensorFlow's server
        time.sleep(4 * PACE)
        own.client.set(2)
        own.eventually(copy=2)
    assert not own.is_lost.is_set()
    served.server.close(0.0)
    assert own.is_lost.wait(SOON)


def test_without_descriptors_it_neither_spins_nor_ends(served):
    server, own = served.server, served.begin()
    host, port = served.address.split(":")
    address = host, int(port)
    clock = time.pthread_getcpuclockid(server._thread.ident)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as caller, socket.socket() as another:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            used, since = time.clock_gettime(clock), time.monotonic()
            caller.connect(address)
            another.connect(address)
            own.client.set(1)
            own.eventually(copy=1)
            time.sleep(1.5)
            used = time.clock_gettime(clock) - used
            assert used < 0.2 * (time.monotonic() - since) and server._thread.is_alive()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_only_the_newest_status_waits_for_a_session_that_does_not_read(served):
    server, own = served.server, served.begin()
    own.client.stay()
    server.hand_over()
    (channel,) = server.owners.values()
    with own.client.fork_lock:  # it reads nothing
        for number in range(3000):
            with server._lock:
                server._leader.more = {"statuses": [number, "x" * 1000]}
            server.wake()
            time.sleep(0.0002)
        assert len(channel._unsent) < 4000 and channel.is_open
    own.eventually(statuses=[2999, "x" * 1000])


STRANGE = [
    *(b"\n", b"GET / HTTP/1.1\r\n\r\n", b'{"nonce": 1}\n', b'{"proof": "x"}\n', b"x" * 99_999),
    *(b'{"rank": "3"}\n', b'{"rank": true}\n', b'{"rank": 3}\n' * 2),
    b'{"rank": 3, "secret": "' + b"x" * 500 + b'"}\n',
]


@pytest.mark.parametrize("data", STRANGE, ids=lambda data: repr(data[:9]))
def test_unauthenticated_clients_are_disconnected_and_others_served(served, data):
    with socket.create_connection(served.address.split(":"), timeout=SOON) as client:
        client.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1000):
                pass
    assert not served.leader.seen, "wrong claims are not reported"
    own = served.begin()
    own.client.set(1)
    own.eventually(copy=1)


@pytest.mark.parametrize("keys", [[""], ["1", "2"], ["k" * 201]])
def test_a_session_has_one_key(served, keys):
    own = call(served.address, SECRET, {})
    for key in keys:
        own.send({"op": "set", "key": key, "value": 1})
    eventually(lambda: own.receive() or not own.is_open)
    assert keys[-1] not in [key for key, *_ in served.leader.seen]


@pytest.mark.parametrize("theirs", [Secret(), Secret(b"other")])
def test_both_ends_detect_who_has_another_secret(served, theirs):
    assert not call(served.address, theirs, tried := {}, rank=3)
    assert kind_of(tried) == UNPROVEN
    eventually(lambda: served.leader.seen)  # the client is refused a moment before
    assert served.leader.seen == [(3, None)]


def test_a_session_knows_since_when_calls_fail_for_one_reason():
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = free.getsockname()
    with StoreSession(f"127.0.0.1:{where[1]}", "1", SECRET, lambda channel: 0) as session:
        eventually(lambda: session.kind == REFUSED)
        first = session.since
        time.sleep(0.5)
        assert session.since == first and session.kind == REFUSED
        another = Secret(b"other")
        server = StoreServer(socket.create_server(where), another, threading.Lock(), Recorder())
        eventually(lambda: session.kind == UNPROVEN)
        server.close(0.0)
    assert session.since > first + 0.5
