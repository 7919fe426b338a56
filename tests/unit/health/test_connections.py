"""The port of the health monitor: workers get in, and clients cannot exhaust its resources."""

import contextlib
import fcntl
import os
import resource
import socket
import threading
import time

import pytest
from support.launching import eventually
from support.rendezvous_tasks import cluster_of

from tf_adasum.cluster import json_lines
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.health import connections
from tf_adasum.health.connections import MOST_UNAUTHENTICATED, Client, Server

SOON = 20.0  # seconds, on a busy machine
SECRET = Secret(b"secret", "TF_ADASUM_SECRET")
TOKEN = 32 * "0"


@pytest.fixture
def server():
    with contextlib.closing(Server("127.0.0.1", 3, SECRET)) as one:
        yield one


def authenticated(server, connection, *messages, secret=SECRET):
    """Send a proof and messages to a server; return the channel."""
    token = server.endpoint["token"]
    channel = Channel(connection, secret, is_server=False, server_nonce=token)
    for message in messages:
        channel.send(message)
    return channel


@pytest.fixture
def call(server):
    """Returns a function that connects an unauthenticated client."""
    with contextlib.ExitStack() as stack:

        def connect(line=b""):
            where = ("127.0.0.1", server.endpoint["port"])
            client = stack.enter_context(socket.create_connection(where))
            client.sendall(line)
            return client

        yield connect


def test_a_port_that_is_given():
    with contextlib.closing(Server("127.0.0.1", 3, SECRET)) as one:
        port = one.endpoint["port"]
        with pytest.raises(OSError, match=rf"TF_ADASUM_WATCH_PORT={port}: .* by this process"):
            Server("127.0.0.1", 3, SECRET, port)
    with contextlib.closing(Server("127.0.0.1", 3, SECRET, port)) as one:
        assert one.endpoint["port"] == port


@contextlib.contextmanager
def limit_of_descriptors(soft):
    """Let this process have descriptors below a number alone."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def heard_from(server, rank, client=None):
    """Serve until a message has come from a worker, which may send until then; return it."""
    deadline = time.monotonic() + SOON
    while True:
        server.wait(0.05)
        for sender, message in server.receive():
            if sender == rank:
                return message
        if client:
            client.send({"a": 1})
            client.receive()
        assert time.monotonic() < deadline, f"worker {rank} was not let in"


def test_idle_unauthenticated_have_few_descriptors_and_workers_get_in(server, call):
    before = descriptors()
    clients = [call() for _ in range(200)]
    for _ in range(10):
        server.receive()
        assert descriptors() - before - len(clients) <= 2 * MOST_UNAUTHENTICATED
    with contextlib.closing(Client("127.0.0.1", server.endpoint, 1, SECRET)) as client:
        assert heard_from(server, 1, client) == {"a": 1}
        assert descriptors() - before - len(clients) - 2 <= MOST_UNAUTHENTICATED + 1


def test_a_long_first_line_is_not_read_to_its_end(server, call):
    client = call(b" " * 20_000)
    server.receive()
    server.receive()
    assert not server._unauthenticated
    with pytest.raises(ConnectionError):
        while True:
            client.sendall(b" ")


def test_a_silent_client_has_a_short_time(server, call, monkeypatch):
    call(b'{"rank": 1')
    server.receive()
    assert len(server._unauthenticated) == 1
    monkeypatch.setattr(connections, "_SECONDS_TO_CONNECT", 0.0)
    server.receive()
    assert not server._unauthenticated


def test_without_descriptors_it_neither_spins_nor_ends(server, call, capfd, monkeypatch):
    monkeypatch.setattr(connections, "_SECONDS_WITHOUT_DESCRIPTORS", 0.3)
    first = authenticated(server, call(), {"rank": 1})
    server.receive()
    call()  # waits in the kernel
    lowest = os.dup(0)
    os.close(lowest)
    with limit_of_descriptors(lowest):
        rounds, end = 0, time.monotonic() + 1
        while time.monotonic() < end:
            server.wait(0.1)
            assert server.receive() == []
            rounds += 1
        first.send({"a": 1})
        assert heard_from(server, 1) == {"a": 1}, "it still hears those who are in"
    assert rounds < 30
    authenticated(server, call(), {"rank": 2}, {"a": 2})
    assert heard_from(server, 2) == {"a": 2}, "and lets in others afterwards"
    assert capfd.readouterr().err.count("Too many open files") == 1


def test_waits_for_any_descriptor():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip(f"this system allows {hard} open files")
    with limit_of_descriptors(max(soft, 2000)):
        own, other = socket.socketpair()
        with own, other, socket.socket(fileno=fcntl.fcntl(own, fcntl.F_DUPFD, 1500)) as high:
            other.sendall(b"\n")
            start = time.monotonic()
            json_lines.wait([high], SOON)
            assert time.monotonic() < start + SOON / 2


def test_a_worker_that_has_lost_its_place_calls_again():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = {"port": listener.getsockname()[1], "token": TOKEN}
        with contextlib.closing(Client("127.0.0.1", endpoint, 1, SECRET)) as client:

            def received():
                client.wait(SOON)
                return client.receive()

            for _ in range(2):
                listener.accept()[0].close()
                assert received() == []
                eventually(lambda: client.receive() == [] and client.connections)
                assert client.connections[0].is_open
            with contextlib.closing(
                Channel(listener.accept()[0], SECRET, is_server=True, server_nonce=TOKEN)
            ) as server:
                messages, sent = [], {"statuses": {}}
                while {"rank": 1} not in messages:
                    messages += server.receive()
                    assert client.receive() == []
                server.send(sent)
                assert received() == [(0, sent)]
            assert received() == [(0, None)] and not client.connections[0].is_open, "it has ended"


def test_a_worker_whose_server_has_ended_does_not_wait():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client("127.0.0.1", {"port": listener.getsockname()[1], "token": TOKEN}, 1, SECRET)
        listener.accept()[0].close()
    client.wait(SOON)
    assert client.receive() == []
    eventually(lambda: client.receive() == [(0, None)])
    assert not client.connections[0].is_open


@pytest.mark.parametrize(
    "port", [0, -1, 1 << 16, 1e400, "1", None, True, 10**400], ids=lambda port: str(port)[:9]
)
def test_an_offer_that_is_none(port):
    with pytest.raises(ValueError, match="port"):
        Client("127.0.0.1", {"port": port, "token": TOKEN}, 1, SECRET)


WRONG_RANKS = [0, -1, 3, 10**30, True, 1.0, "1", None, [1], float("nan"), 2]
WRONG_SECRETS = [Secret(), Secret(b"guess"), SECRET.with_token("x")]


def is_refused(server, client):
    for _ in range(3):
        assert server.receive() == []
        server.wait(0.05)
        json_lines.wait([client.socket], 0.05)
    client.receive()
    return not client.is_open


def test_a_client_with_the_token_gets_no_place_but_its_own(server, call, capfd):
    """Rank 2 is there already."""
    authenticated(server, call(), {"rank": 2}, {"a": 1})
    assert heard_from(server, 2) == {"a": 1}
    own = server.connections[2]
    for rank in WRONG_RANKS:
        assert is_refused(server, authenticated(server, call(), {"rank": rank}, {"forged": 1}))
    for message in ([], 1, "rank", None):
        assert is_refused(server, authenticated(server, call(), message, {"rank": 1}))
    for secret in WRONG_SECRETS:
        client = authenticated(server, call(), {"rank": 1}, {"forged": 1}, secret=secret)
        assert is_refused(server, client) and client.is_refused
    assert server.connections == {2: own} and own.is_open
    (line,) = capfd.readouterr().err.splitlines()
    assert "refuses a connection from 127.0.0.1: its rank is wrong, or taken" in line


def test_a_repeated_connection_is_refused(server, call):
    """Somebody who reads the traffic sends the same bytes again, after the worker was lost."""
    near, far = socket.socketpair()
    with near, far:
        authenticated(server, near, {"rank": 1}, {"a": 1})
        recorded = far.recv(1 << 16)
    first = call(recorded)
    assert heard_from(server, 1) == {"a": 1}
    first.close()
    while server.connections[1].is_open:
        server.receive()
    for line in (recorded, recorded[: recorded.index(b"\n") + 1]):  # all, or only the proof
        again = call(line)
        for _ in range(5):
            assert server.receive() == []
            server.wait(0.05)
            json_lines.wait([again], 0.05)
        assert not server.connections[1].is_open and not server._unauthenticated


def test_many_workers_get_in_although_worker_0_was_busy(call):
    """Their proofs, ranks and statuses have arrived when worker 0 accepts their connections."""
    with contextlib.closing(Server("127.0.0.1", 65, SECRET)) as server:
        endpoint = server.endpoint
        clients = [Client("127.0.0.1", endpoint, rank, SECRET) for rank in range(1, 65)]
        for client in clients:
            client.send({"status": 1})
        received = [rank for _ in range(3) for rank, _ in server.receive()]
        assert sorted(received) == list(range(1, 65))
        for client in clients:
            client.close()


def test_only_the_newest_status_waits_for_a_worker_that_does_not_read(server, call):
    client = authenticated(server, call(), {"rank": 1})
    server.receive()
    for number in range(10_000):
        server.send({"number": number, "text": "x" * 1000})
    assert len(server.connections[1]._unsent) < 3000
    messages = client.receive()
    server.send({"number": "newer"})
    server.send({"number": "newest"})
    for _ in range(100):
        messages += client.receive()
        server.connections[1].flush()
    *numbers, last = [message["number"] for message in messages]
    assert numbers == sorted(set(numbers)) and len(numbers) < 10_000 and last == "newest"
    assert client.is_open and server.connections[1].is_open


def test_the_last_status_is_sent_even_if_the_worker_ends_at_once(server):
    client = Client("127.0.0.1", server.endpoint, 1, SECRET)
    client.send({"status": "ended"})
    client.close()
    assert heard_from(server, 1) == {"status": "ended"}


def test_refusals_are_counted_and_printed_seldom(capfd, monkeypatch):
    refusals = connections.RefusalLog()
    for number in range(5):
        refusals.report(f"number {number}")
    refusals._next = time.monotonic()
    refusals.report("the last")
    assert capfd.readouterr().err.splitlines() == [
        "tf_adasum: the failure detector refuses number 0",
        "tf_adasum: the failure detector refuses the last (6 refusals so far)",
    ]


def test_a_port_that_cannot_be_reached_at_first(monkeypatch, capfd):
    monkeypatch.setattr(connections, "_SECONDS_BETWEEN_TRIES", 0.05)
    with contextlib.closing(Server("127.0.0.1", 2, SECRET)) as gone:
        endpoint = gone.endpoint
    found, is_found = [], threading.Event()
    cluster = cluster_of("127.0.0.1:1", "127.0.0.1:2", rank=1)
    connections.connect(
        cluster, endpoint, SECRET, lambda client: found.append(client) or is_found.set()
    )
    assert "worker 1 cannot reach port" in capfd.readouterr().err
    assert not found
    with contextlib.closing(Server("127.0.0.1", 2, SECRET, endpoint["port"])):
        assert is_found.wait(SOON), "it does not call again"
        found[0].close()
