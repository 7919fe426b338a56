"""Messages between workers: JSON objects, one in a line, over sockets. Standard library only.

Nothing that arrives is trusted: a line has a greatest length and a time, and what is no JSON object
is no message.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import time
from collections.abc import Iterable
from typing import Any

LONGEST_LINE = 1 << 20  # bytes


def encode(message: dict[str, Any]) -> bytes:
    """Return the line of a message."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the message in a line, None if there is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # deeply nested JSON exhausts the parser
        return None
    return message if isinstance(message, dict) else None


def receive(
    connection: socket.socket, seconds: float, longest_line: int = LONGEST_LINE
) -> dict[str, Any] | None:
    """Wait for one message on a blocking socket.

    Args:
        connection: a socket, whose timeout is set.
        seconds: for how long to wait, however the line trickles in.
        longest_line: bytes; of a longer one no more is read. Defaults to `LONGEST_LINE`.

    Returns:
        The message, None if the other side has sent something else.

    Raises:
        TimeoutError: if the line does not end in time.
        EOFError: if the other side closes the connection before it has sent anything.
    """
    line = b""
    deadline = time.monotonic() + seconds
    while not line.endswith(b"\n") and len(line) < longest_line:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        piece = connection.recv(min(longest_line, 1 << 16))
        if not piece and not line:
            raise EOFError
        if not piece:
            break
        line += piece
        if time.monotonic() > deadline and not line.endswith(b"\n"):
            raise TimeoutError
    return decode(line)


def wait(sockets: Iterable[socket.socket], seconds: float) -> None:
    """Wait until something arrives, or the time is over.

    Any file descriptor will do, also one above 1023; and no other is needed, as there may be none.
    """
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    poll.poll(math.ceil(max(0.0, seconds) * 1000))


class Connection:
    """A connection over which messages go, and no method blocks but `close`.

    Args:
        connection: a connected socket, which becomes this object's.
        longest_line: bytes; after a longer one the connection counts as ended. Defaults to
            `LONGEST_LINE`.

    Attributes:
        socket: the socket, to wait for.
        longest_line: as above.
        begun: when it began, by `time.monotonic`.
        heard: when something arrived last.
        is_open: False after the other side has ended.
    """

    def __init__(self, connection: socket.socket, longest_line: int = LONGEST_LINE):
        connection.setblocking(False)
        self.socket, self.longest_line = connection, longest_line
        self.begun = self.heard = time.monotonic()
        self.is_open = True
        self._incoming, self._outgoing = b"", b""

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, which is left out while the other side does not read."""
        if not self._outgoing:
            self._outgoing = encode(message)
        try:
            sent = self.socket.send(self._outgoing)
            self._outgoing = self._outgoing[sent:]
        except OSError:
            pass  # not now; or gone, and what it has said before is still to be read

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived; what is very much is left for the next call."""
        try:
            while (room := self.longest_line + 1 - len(self._incoming)) > 0:
                piece = self.socket.recv(min(room, 1 << 16))
                if not piece:
                    self.is_open = False
                    break
                self._incoming += piece
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *lines, self._incoming = self._incoming.split(b"\n")
        if lines:
            self.heard = time.monotonic()
        if len(self._incoming) > self.longest_line:
            self.is_open, self._incoming = False, b""
        return [message for message in map(decode, lines) if message is not None]

    def close(self, deadline: float = 0.0) -> None:
        """Close the connection; until the deadline, not before the other side has read all.

        With something unread in it a connection would be reset, and the last words lost.

        Args:
            deadline: by `time.monotonic`. Defaults to 0, at once.
        """
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while self.is_open and time.monotonic() < deadline:
                wait([self.socket], deadline - time.monotonic())
                self.receive()
        self.socket.close()
