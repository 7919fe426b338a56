"""Lines that are JSON objects, and how to wait for them. Standard library only.

No received data is trusted: a line is not a message if it is not a JSON object.
"""

from __future__ import annotations

import json
import math
import select
import socket
from typing import Any


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
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else "?" for each in shown)


def wait(connection: socket.socket, seconds: float) -> None:
    """Wait until data arrives, or the time is over.

    This function supports file descriptors larger than 1023. It opens no file descriptor, because
    the process may have reached its limit.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.poll(math.ceil(max(0.0, seconds) * 1000))
