"""Authenticated messages: they arrive whole and in order, and nothing else does."""

import contextlib
import json
import socket

import pytest
from support.launching import eventually

from tf_adasum.cluster.channel import LONGEST_MESSAGE, Channel
from tf_adasum.cluster.secret import Secret

SECRET = Secret(b"key")


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
    messages = []
    eventually(lambda: messages.extend(end.receive()) or len(messages) >= count or not end.is_open)
    return messages


def test_messages_arrive_in_both_directions_in_order(ends):
    for first, second in (ends, ends[::-1]):
        sent = [{"n": number, "text": "ü" * number} for number in range(50)]
        for message in sent:
            first.send(message)
        assert received(second, 50) == sent


NO_MESSAGE = [b"", b"{", b"[]", b"1", b"null", b"\xff\xfe", b"[" * 99_999]


@pytest.mark.parametrize("line", NO_MESSAGE, ids=lambda line: repr(line[:9]))
def test_what_is_no_message_closes_the_channel(ends, line):
    client, server = ends
    client.socket.sendall(line + b"\n")
    assert received(server, 1) == [] and not server.is_open


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
            patched.setattr(end, "flush", lambda: None)
        client.send({"op": "set"})
        server.send({"op": "set"})
        line = json.loads((server if change == "reflected" else client)._unsent)
        client._unsent = server._unsent = b""
    if change == "changed":
        line = line | {"text": line["text"].replace("set", "get")}
    if change == "unproved":
        line = line | {"proof": None}
    if change == "long":
        assert server._longest_line == LONGEST_MESSAGE
        server._longest_line = 1000  # what fits into the socket
        line = line | {"text": "x" * 1000}
    for each in [line, line] if change == "repeated" else [line]:
        client.socket.setblocking(True)
        client.socket.sendall(json.dumps(each).encode() + b"\n")
    expected = [{"op": "set"}] if change == "repeated" else []
    assert received(server, 2) == expected
    assert not server.is_open
