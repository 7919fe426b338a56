"""Sends and receives messages over sockets, one JSON object in each line. Standard library only.

No received data is trusted. There are limits for the length of a line and for the time in which it
arrives, and a line is not a message if it is not a JSON object.
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
    """Return a message as a line."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the message in a line; None if the line is not a message."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # deeply nested JSON exhausts the parser
        return None
    return message if isinstance(message, dict) else None


def printable(text: Any, longest: int) -> str:
    """Return a received text in a form that can be printed; "" if it is not a text."""
    shown = text[:longest] if isinstance(text, str) else ""
    return "".join(each if each.isprintable() else "?" for each in shown)


def wait(sockets: Iterable[socket.socket], seconds: float) -> set[int]:
    """Wait until data arrives, or the time is over; return the file descriptors that have data.

    This function supports file descriptors larger than 1023. It opens no file descriptor, because
    the process may have reached its limit.
    """
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    return {number for number, _ in poll.poll(math.ceil(max(0.0, seconds) * 1000))}


class Connection:
    """Receives messages over a connection. Of its methods, only `close` blocks.

    Args:
        connection: a connected socket, which this object will close.
        longest_line: the largest number of bytes in a line. After a longer line, the connection
            counts as ended. Defaults to `LONGEST_LINE`.

    Attributes:
        socket: the socket, on which the caller can wait for data.
        longest_line: the argument `longest_line`.
        is_open: False after the other side has closed the connection.
        has_other_data: whether data has arrived that is not a message.
    """

    def __init__(self, connection: socket.socket, longest_line: int = LONGEST_LINE):
        connection.setblocking(False)
        self.socket, self.longest_line = connection, longest_line
        self.is_open, self.has_other_data = True, False
        self._incoming = b""

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived.

        If very much data has arrived, at most `longest_line` + 1 bytes of it are processed, and the
        rest is left for the next call.
        """
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
        messages = [decode(line) for line in lines]
        is_cut = bool(self._incoming) and not self.is_open
        if len(self._incoming) > self.longest_line:
            self.is_open, is_cut, self._incoming = False, True, b""
        self.has_other_data |= is_cut or None in messages
        return [message for message in messages if message is not None]

    def close(self, deadline: float = 0.0) -> None:
        """Close the connection when the other side has read all data, or at the deadline.

        A connection with unread data would be reset, and its last messages would be lost.

        Args:
            deadline: a time, by `time.monotonic`. Defaults to 0, which closes at once.
        """
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while self.is_open and time.monotonic() < deadline:
                wait([self.socket], deadline - time.monotonic())
                self.receive()
        self.socket.close()
