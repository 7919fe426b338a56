"""The shared store: keys, watches and leases, first without and then over connections."""

import contextlib
import socket
import threading
import time

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.fuzzing import fuzz_settings

from tf_adasum.cluster import json_lines, store, store_client
from tf_adasum.cluster.channel import LONGEST_MESSAGE, Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.store import Store, StoreServer
from tf_adasum.cluster.store_client import StoreClient

SOON = 20.0
SECRET = Secret(b"key")
SESSIONS = st.sampled_from(["a", "b", "c"])
KEYS = st.sampled_from(["member/1", "member/2", "round/1", "end"])
PREFIXES = st.sampled_from(["member/", "round/", "", "end"])


class Histories(RuleBasedStateMachine):
    """Sessions set keys, watch and end, in any order; partitions end sessions."""

    def __init__(self):
        super().__init__()
        self.store = Store()
        self.expected, self.owners = {}, {}
        self.prefixes = {}  # from each watching session to its prefixes
        self.seen = {}  # from each watching session to the keys as its changes show them

    def deliver(self, changes):
        for session, key, value in changes:
            assert any(key.startswith(prefix) for prefix in self.prefixes[session])
            if value is None:
                self.seen[session].pop(key, None)
            else:
                self.seen[session][key] = value

    @rule(session=SESSIONS, key=KEYS, value=st.none() | st.integers(), owned=st.booleans())
    def set(self, session, key, value, owned):
        self.owners.pop(key, None)
        self.expected[key] = value
        if value is None:
            del self.expected[key]
        elif owned:
            self.owners[key] = session
        self.deliver(self.store.set(session, key, value, owned=owned))

    @rule(session=SESSIONS, prefix=PREFIXES)
    def watch(self, session, prefix):
        self.prefixes.setdefault(session, set()).add(prefix)
        self.seen.setdefault(session, {})
        self.deliver(self.store.watch(session, prefix))

    @rule(session=SESSIONS)
    def end(self, session):
        self.prefixes.pop(session, None)
        self.seen.pop(session, None)
        for key in [key for key, owner in self.owners.items() if owner == session]:
            del self.expected[key], self.owners[key]
        self.deliver(self.store.end(session))

    @invariant()
    def every_session_sees_the_keys_that_it_watches(self):
        for session, seen in self.seen.items():
            prefixes = tuple(self.prefixes[session])
            assert seen == {k: v for k, v in self.expected.items() if k.startswith(prefixes)}


TestHistories = Histories.TestCase
TestHistories.settings = fuzz_settings(200)


@pytest.mark.parametrize("key", ["k" * 201, "new"])
def test_the_store_has_limits(key, monkeypatch):
    monkeypatch.setattr(store, "_MOST_KEYS", 1)
    own = Store()
    own.set("a", "known", 1)
    with pytest.raises(ValueError, match="cannot hold another key"):
        own.set("a", key, 1)


def test_sessions_own_a_third_of_the_keys(monkeypatch):
    monkeypatch.setattr(store, "_MOST_KEYS", 6)
    own = Store()
    for number in range(2):
        own.set("a", f"own{number}", 1, owned=True)
    with pytest.raises(ValueError, match="cannot hold another key"):
        own.set("b", "own2", 1, owned=True)
    own.set("leader", "result", 1)


# ---- over connections --------------------------------------------------------------------------


class Recorder:
    """A leader that records what it receives."""

    prefix = "member/"

    def __init__(self):
        self.seen = []

    def changed(self, key, value, ends):
        self.seen.append((key, value, ends))

    def authentication_failed(self, rank, has_secret):
        self.seen.append((rank, has_secret))

    def decide(self, now):
        return {"copy": self.seen[-1][1]} if self.seen else {}


@pytest.fixture
def address(monkeypatch):
    """The address of a store, whose leases are short."""
    monkeypatch.setattr(store, "LEASE_SECONDS", 3.0)
    listener = socket.create_server(("127.0.0.1", 0))
    server = StoreServer(listener, SECRET, threading.Lock(), Recorder())
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    server.close()


class Session:
    """A client, with the keys as it sees them."""

    def __init__(self, address, secret=SECRET):
        self.keys, self.is_lost = {}, threading.Event()
        made = store_client.connected(address, secret, seconds=SOON)
        deliver, lost = self.keys.__setitem__, self.is_lost.set
        self.client = StoreClient(made, threading.Lock(), deliver, lost)

    def eventually(self, **expected):
        deadline = time.monotonic() + SOON
        while any(self.keys.get(key) != value for key, value in expected.items()):
            assert time.monotonic() < deadline, self.keys
            time.sleep(0.01)


@pytest.fixture
def session(address):
    """A function that begins a session."""
    with contextlib.ExitStack() as stack:

        def begin(secret=SECRET):
            made = Session(address, secret)
            stack.callback(made.client.close)
            return made

        yield begin


def test_watching_sessions_receive_changes_until_the_owner_ends(session):
    first, second = session(), session()
    first.client.watch("member/")
    second.client.set("member/2", [1, {"a": None}])
    first.eventually(**{"member/2": [1, {"a": None}]})
    second.client.close()
    first.eventually(**{"member/2": None})
    assert "copy" not in first.keys


def test_a_silent_session_loses_its_keys_and_detects_it(session, monkeypatch):
    first, second = session(), session()
    first.client.watch("")
    second.client.set("member/2", 1)
    first.eventually(**{"member/2": 1})
    second.client._lock.acquire()  # as in a suspended process
    try:
        first.eventually(**{"member/2": None})
    finally:
        second.client._lock.release()
    assert second.is_lost.wait(SOON)
    assert not first.is_lost.is_set()


def test_a_lost_server_is_reported():
    listener = socket.create_server(("127.0.0.1", 0))
    server = StoreServer(listener, SECRET, threading.Lock(), Recorder())
    own = Session(f"127.0.0.1:{listener.getsockname()[1]}")
    server.close()
    assert own.is_lost.wait(SOON)
    own.client.close()


@pytest.mark.parametrize("theirs", [Secret(), Secret(b"other")])
def test_another_secret_is_refused(session, theirs):
    with pytest.raises(ConnectionError, match="the same secret"):
        session(theirs)


@pytest.mark.parametrize(
    ("is_there", "why"), [(False, "Connection refused"), (True, "another program answers there")]
)
def test_no_server_is_reported_and_then_an_error(monkeypatch, is_there, why):
    monkeypatch.setattr(store_client, "_SECONDS_BETWEEN_REPORTS", 0.2)
    reports = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if not is_there:
            listener.close()
        else:
            threading.Thread(target=greet, args=[listener], daemon=True).start()
        with pytest.raises(ConnectionError, match=why):
            store_client.connected(address, Secret(), seconds=1.5, report=reports.append)
    assert set(reports) == {why}


def greet(listener):
    """Answer callers as a mail server does."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as connection:
                connection.sendall(b"220 mail\r\n")


STRANGE = [b"\n", b"GET / HTTP/1.1\r\n\r\n", b'{"nonce": 1}\n', b'{"proof": "x"}\n', b"x" * 99_999]


@pytest.mark.parametrize("data", STRANGE, ids=lambda data: repr(data[:9]))
def test_unauthenticated_clients_are_disconnected_and_others_served(address, session, data):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=SOON) as client:
        client.sendall(data)
        while client.recv(1000):
            pass
    own = session()
    own.client.watch("")
    own.client.set("member/1", 1)
    own.eventually(**{"member/1": 1})


def test_many_silent_clients_do_not_keep_others_out(address, session):
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=SOON))
        own = session()
        own.client.watch("")
        own.client.set("member/1", 1)
        own.eventually(**{"member/1": 1})


@pytest.fixture
def led():
    """A store with a leader: its address and the leader."""
    leader, listener = Recorder(), socket.create_server(("127.0.0.1", 0))
    server = StoreServer(listener, SECRET, threading.Lock(), leader)
    yield f"127.0.0.1:{listener.getsockname()[1]}", leader
    server.close(0.0)


def test_a_leader_receives_changes_with_addresses_and_sets_keys(led):
    address, leader = led
    first, second = Session(address), Session(address)
    first.client.watch("copy")
    second.client.set("member/1", 7)
    first.eventually(copy=7)
    second.client.close()
    first.eventually(copy=None)
    first.client.close()
    ends = ("127.0.0.1", "127.0.0.1")
    assert leader.seen == [("member/1", 7, ends), ("member/1", None, ends)]


@pytest.mark.parametrize("keys", [["copy"], ["member/1", "member/2"]])
def test_only_the_leader_sets_other_keys(led, keys):
    own = Session(led[0])
    for key in keys:
        own.client.set(key, 1)
    assert own.is_lost.wait(SOON) and keys[-1] not in [key for key, *_ in led[1].seen]
    own.client.close()


@pytest.mark.parametrize("theirs", [Secret(), Secret(b"other")])
def test_both_ends_detect_who_has_another_secret(led, theirs):
    address, leader = led
    found = store_client.call(address, theirs, time.monotonic() + SOON, rank=3)
    assert found.unauthenticated is True and not found.channel
    deadline = time.monotonic() + SOON
    while not leader.seen and time.monotonic() < deadline:  # the client is refused a moment before
        time.sleep(0.01)
    assert leader.seen == [(3, bool(theirs.key))]


HINTS = [
    [b'{"rank": "3"}\n'],
    [b'{"rank": true}\n'],
    [b'{"rank": 3}\n'] * 2,
    [b'{"rank": 3, "secret": "' + b"x" * 500 + b'"}\n'],
]


@pytest.mark.parametrize("lines", HINTS)
def test_wrong_claims_of_unauthenticated_clients_are_not_reported(led, lines):
    host, port = led[0].split(":")
    with socket.create_connection((host, int(port)), timeout=SOON) as client:
        client.sendall(b"".join(lines))
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1000):
                pass
    assert not led[1].seen


def test_a_session_watches_a_limited_number_of_prefixes():
    own = Store()
    for number in range(100):
        own.watch("a", f"{number}/")
    for prefix in ("100/", "k" * 201):
        with pytest.raises(ValueError, match="another prefix"):
            own.watch("a", prefix)


@pytest.fixture
def ends():
    """The two ends of an authenticated connection: the client's and the server's."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in socket.socketpair()]
        server = Channel(sockets[1], SECRET, is_server=True)
        client = Channel(sockets[0], SECRET, is_server=False)
        while not (client.is_authenticated and server.is_authenticated):
            for end in client, server:
                end.flush()
                assert not end.receive() and end.is_open
        yield client, server


def received(end, count):
    messages, deadline = [], time.monotonic() + SOON
    while len(messages) < count and end.is_open and time.monotonic() < deadline:
        json_lines.wait([end.socket], 1)
        messages += end.receive()
    return messages


def test_messages_arrive_in_both_directions_in_order(ends):
    for first, second in (ends, ends[::-1]):
        sent = [{"n": number, "text": "ü" * number} for number in range(50)]
        for message in sent:
            first.send(message)
        assert received(second, 50) == sent


def test_messages_are_sent_in_parts_to_a_slow_reader(ends):
    client, server = ends
    for number in range(40):
        client.send([number, "x" * 50_000])
    messages = []
    while len(messages) < 40:
        client.flush()
        messages += received(server, 1)
    assert [number for number, _ in messages] == list(range(40))


def test_a_reader_that_never_reads_is_disconnected(ends):
    client, _ = ends
    for _ in range(100):
        client.send("x" * 60_000)
    assert not client.is_open


@pytest.mark.parametrize("change", ["repeated", "changed", "unproved", "reflected", "long"])
def test_a_message_without_the_right_proof_closes_the_channel(ends, change):
    client, server = ends
    with pytest.MonkeyPatch.context() as patched:
        for end in ends:  # keeps what it sends
            patched.setattr(end, "_send_unsent", lambda: None)
        client.send({"op": "set"})
        server.send({"op": "set"})
        line = json_lines.decode((server if change == "reflected" else client)._unsent)
        client._unsent = server._unsent = b""
    if change == "changed":
        line = line | {"text": line["text"].replace("set", "get")}
    if change == "unproved":
        line = line | {"proof": None}
    if change == "long":
        line = line | {"text": "x" * LONGEST_MESSAGE}
    for each in [line, line] if change == "repeated" else [line]:
        client.socket.setblocking(True)
        client.socket.sendall(json_lines.encode(each))
    expected = [{"op": "set"}] if change == "repeated" else []
    assert received(server, 2) == expected
    assert not server.is_open
