"""Messages over sockets: what arrives, and what does not count as a message."""

import contextlib
import socket
import time

import pytest

from tf_adasum.cluster import json_lines
from tf_adasum.cluster.json_lines import LONGEST_LINE, Connection

SOON = 20.0


@pytest.fixture
def pair():
    """Two connected sockets."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(each) for each in socket.socketpair()]


def arriving(connection, count):
    """Returns messages as soon as there are so many, or the other side has ended."""
    messages, deadline = [], time.monotonic() + SOON
    while len(messages) < count and connection.is_open and time.monotonic() < deadline:
        json_lines.wait([connection.socket], 1)
        messages += connection.receive()
    return messages


NO_MESSAGE = [b"", b"\n", b"{", b"[]", b"1", b"null", b"\xff\xfe", b"[" * 99_999]


@pytest.mark.parametrize("line", NO_MESSAGE, ids=lambda line: repr(line[:9]))
def test_what_is_no_message_is_passed_over(line, pair):
    assert json_lines.decode(line) is None
    pair[0].sendall(line + b"\n" + json_lines.encode({"a": 1}))
    assert arriving(Connection(pair[1]), 1) == [{"a": 1}]


def test_several_messages_and_a_part_of_one(pair):
    connection = Connection(pair[1])
    first, second, third = ({"number": number} for number in (1, 2, 3))
    line = json_lines.encode(third)
    pair[0].sendall(json_lines.encode(first) + json_lines.encode(second) + line[:4])
    assert arriving(connection, 2) == [first, second]
    pair[0].sendall(line[4:])
    assert arriving(connection, 1) == [third]
    assert connection.is_open
    pair[0].close()
    assert arriving(connection, 1) == [] and not connection.is_open


def test_a_limit_counts_from_the_beginning_of_a_line(pair):
    """A handshake has a small limit, and a long first message may arrive with its last line."""
    first, status = {"rank": 1}, {"text": "x" * 5000}
    pair[0].sendall(json_lines.encode(first) + json_lines.encode(status))
    connection = Connection(pair[1], longest_line=1000)
    assert connection.receive() == [first] and connection.is_open
    connection.longest_line = LONGEST_LINE
    assert connection.receive() == [status]


def test_close_waits_for_the_reader_until_the_deadline(pair):
    connection = Connection(pair[0])
    pair[0].sendall(json_lines.encode({"last": "words"}))
    start = time.monotonic()
    connection.close(start + 0.3)
    assert 0.3 <= time.monotonic() - start < SOON
    assert arriving(Connection(pair[1]), 1) == [{"last": "words"}]
