"""Messages over sockets: what arrives, and what does not count as a message."""

import contextlib
import socket
import threading
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
def test_what_is_no_message(line, pair):
    assert json_lines.decode(line) is None
    pair[0].sendall(line + b"\n" + json_lines.encode({"a": 1}))
    assert arriving(Connection(pair[1]), 1) == [{"a": 1}], "the line is passed over"


def test_a_message_travels(pair):
    message = {"a": [1, 2.5, None, "ü\n"]}
    assert json_lines.decode(json_lines.encode(message)) == message
    pair[0].sendall(json_lines.encode(message))
    assert json_lines.receive(pair[1], SOON) == message


def test_several_messages_and_a_part_of_one(pair):
    connection = Connection(pair[1])
    first, second, third = ({"number": number} for number in (1, 2, 3))
    line = json_lines.encode(third)
    pair[0].sendall(json_lines.encode(first) + json_lines.encode(second) + line[:4])
    assert arriving(connection, 2) == [first, second]
    pair[0].sendall(line[4:])
    assert arriving(connection, 1) == [third]
    assert connection.is_open and connection.heard >= connection.begun
    pair[0].close()
    assert arriving(connection, 1) == [] and not connection.is_open


def test_a_line_without_end_is_given_up(pair):
    connection = Connection(pair[1])
    sending = threading.Thread(target=_flood, args=[pair[0], LONGEST_LINE + (1 << 16)])
    sending.start()
    assert arriving(connection, 1) == [] and not connection.is_open
    pair[1].close()
    sending.join()


def test_a_line_without_end_is_not_read_to_its_end(pair):
    pair[1].settimeout(SOON)
    sending = threading.Thread(target=_flood, args=[pair[0], 4 * LONGEST_LINE])
    sending.start()
    assert json_lines.receive(pair[1], SOON) is None
    pair[1].close()
    sending.join()


class Trickling:
    """A socket at which a piece arrives between two calls of `recv`."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    def setblocking(self, flag):
        pass

    def recv(self, size):
        if not self._pieces:
            raise BlockingIOError
        piece = self._pieces.pop(0)
        self._pieces[:0] = [piece[size:]] if piece[size:] else []
        return piece[:size]


def test_a_limit_counts_from_the_beginning_of_a_line():
    """A short line, and within one call parts of a long one: the limit may be raised for it."""
    first, second = {"rank": 1}, {"text": "x" * 5000}
    line = json_lines.encode(first) + json_lines.encode(second)
    connection = Connection(Trickling(line[:600], line[600:]), longest_line=1000)
    assert connection.receive() == [first] and connection.is_open
    connection.longest_line = LONGEST_LINE
    assert connection.receive() == [second] and connection.is_open
    connection = Connection(Trickling(line[:600], line[600:]), longest_line=1000)
    assert connection.receive() == [first]
    assert connection.receive() == [] and not connection.is_open


def _flood(connection, count):
    with contextlib.suppress(OSError):
        connection.sendall(b" " * count)


def test_a_line_that_trickles_has_a_time(pair):
    done = threading.Event()

    def trickle():
        while not done.wait(0.05):
            pair[0].sendall(b" ")

    sending = threading.Thread(target=trickle)
    sending.start()
    with pytest.raises(TimeoutError):
        json_lines.receive(pair[1], 0.3)
    done.set()
    sending.join()


def test_nothing_is_added_while_the_other_side_does_not_read(pair):
    connection = Connection(pair[0])
    for number in range(10_000):
        connection.send({"number": number, "text": "x" * 1000})
    assert len(connection._outgoing) < 2000
    other = Connection(pair[1])
    numbers = [message["number"] for message in arriving(other, 10)]
    assert numbers[:10] == list(range(10))


def test_close_waits_for_the_reader_until_the_deadline(pair):
    connection = Connection(pair[0])
    connection.send({"last": "words"})
    start = time.monotonic()
    connection.close(start + 0.3)
    assert 0.3 <= time.monotonic() - start < SOON
    assert json_lines.receive(pair[1], SOON) == {"last": "words"}
