"""Measure latency and bandwidth between two workers, over one TCP connection.

Uses only the standard library. The results help to find a slow link. They hold for Python's
sockets, but gradients are sent over UCX or gRPC, or over NCCL between GPUs.

    caller                         answerer
       ── 64 bytes ──────────────────▶          PINGS times: latency, half of the round trip
       ◀────────────────── 64 bytes ──
       ── chunks, for some seconds ──▶          bandwidth there: the time until the confirmation
       ◀────────────── confirmation ──
       ◀──────────────────── chunks ──          bandwidth back, in the same way
       ── confirmation ──────────────▶
       ◀───── the answerer's result ──
"""

from __future__ import annotations

import math
import socket
import statistics
import struct
import time

PINGS = 50
LONGEST_SECONDS = 5.0  # of sending in one direction

_PING = b"p" * 64
# The first byte of a chunk shows whether another chunk follows.
_CHUNK_BYTES = 1 << 18
_MORE, _LAST = b"m", b"l"
_CONFIRMATION = b"c"
_RESULT = struct.Struct("!d")  # bytes per second


def measure_link(connection: socket.socket, seconds: float) -> dict[str, float]:
    """Measure a connection whose other end calls `serve_link`.

    Args:
        connection: a connected socket with a timeout.
        seconds: how long to send in each direction.

    Returns:
        "latency_seconds" of one direction, "bytes_per_second" from this end to the other end, and
        "bytes_per_second_back" from the other end to this end.

    Raises:
        OSError: if the connection breaks, or if the other end sends nothing within the timeout.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        connection.sendall(_PING)
        _receive(connection, len(_PING))
        times.append(time.perf_counter() - begun)
    there = _send(connection, seconds)
    _take(connection)
    (back,) = _RESULT.unpack(_receive(connection, _RESULT.size))
    return {
        "latency_seconds": statistics.median(times) / 2,
        "bytes_per_second": there,
        "bytes_per_second_back": _checked(back),
    }


def serve_link(connection: socket.socket, seconds: float) -> None:
    """Answer `measure_link` at the other end of the connection.

    Args:
        connection: a connected socket with a timeout.
        seconds: how long to send.

    Raises:
        OSError: as for `measure_link`.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(PINGS):
        _receive(connection, len(_PING))
        connection.sendall(_PING)
    _take(connection)
    back = _send(connection, seconds)
    connection.sendall(_RESULT.pack(back))


def _send(connection, seconds):
    """Send for some seconds; return the number of bytes per second that the other end received."""
    chunk = bytes(_CHUNK_BYTES - 1)
    begun = time.perf_counter()
    sent = 0
    while True:
        is_last = time.perf_counter() - begun > seconds
        connection.sendall((_LAST if is_last else _MORE) + chunk)
        sent += _CHUNK_BYTES
        if is_last:
            break
    _receive(connection, len(_CONFIRMATION))
    return sent / (time.perf_counter() - begun)


def _take(connection):
    """Receive the chunks of `_send`, and confirm them."""
    buffer = bytearray(_CHUNK_BYTES)
    while True:
        _receive_into(connection, memoryview(buffer))
        if buffer[:1] == _LAST:
            break
    connection.sendall(_CONFIRMATION)


def _receive(connection, size):
    buffer = bytearray(size)
    _receive_into(connection, memoryview(buffer))
    return bytes(buffer)


def _receive_into(connection, view):
    while view:
        size = connection.recv_into(view)
        if not size:
            raise ConnectionResetError("the other end has closed the connection")
        view = view[size:]


def _checked(bytes_per_second):
    if not 0 < bytes_per_second < math.inf:
        raise ConnectionError(f"the other end sent {bytes_per_second!r} instead of its measurement")
    return bytes_per_second
