"""Open a port on each worker while the doctor checks several workers.

Other workers measure their connection to this port. They also stay connected to the port of worker
0, from which they receive instructions. Clients have to send a token, which the workers exchange at
the rendezvous. Uses only the standard library.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from tf_adasum.cluster import addresses, json_lines
from tf_adasum.cluster.reception import Reception
from tf_adasum.doctor import link_benchmark

_SECONDS_FOR_A_WORD = 10.0
_BACKLOG = 1024
_LONGEST_HELLO = 1000


class ProbeServer:
    """Serves other workers on an open port until the context ends.

    Args:
        host: the host of this worker's address.
        workers: how many authenticated clients may be connected at a time.

    Attributes:
        offer: the port and the token, which other workers need to connect.
    """

    def __init__(self, host: str, workers: int):
        listener = addresses.bound(host, 0, reuse=False)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._reception = Reception(listener, self._answer, workers)
        self._token = secrets.token_hex(16)
        self.offer = [listener.getsockname()[1], self._token]
        self._waiting: dict[int, MessageStream] = {}
        self._change = threading.Condition()
        self._closing = threading.Event()

    def __enter__(self) -> ProbeServer:
        """Start to serve clients."""
        self._reception.open()
        return self

    def __exit__(self, *exception) -> None:
        """Close the port, and the connections of waiting workers."""
        self._closing.set()
        self._reception.close()
        for line in self._waiting.values():
            line.close()

    def waiting(self, ranks: Iterable[int], seconds: float) -> dict[int, MessageStream]:
        """Return the open connections to the workers that wait for instructions.

        Args:
            ranks: the ranks of the expected workers.
            seconds: how long to wait for them.
        """
        with self._change:
            self._change.wait_for(lambda: self._waiting.keys() >= {*ranks}, seconds)
            return {rank: self._waiting[rank] for rank in ranks if rank in self._waiting}

    def _answer(self, connection):
        try:
            hello = json_lines.receive(connection, _SECONDS_FOR_A_WORD, _LONGEST_HELLO) or {}
            if not hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode()):
                return
            self._reception.knows(connection)
            connection.settimeout(_SECONDS_FOR_A_WORD)
            if isinstance(hello.get("rank"), int):
                with self._change:
                    self._waiting[hello["rank"]] = MessageStream(connection)
                    self._change.notify_all()
                self._closing.wait()
            elif isinstance(hello.get("seconds"), (int, float)):
                connection.sendall(json_lines.encode({"ready": True}))
                link_benchmark.serve_link(
                    connection, min(hello["seconds"], link_benchmark.LONGEST_SECONDS)
                )
        except (OSError, EOFError):
            pass  # the client gets an error as well


def wait_for_instructions(host: str, offer: Any, rank: int, seconds: float) -> MessageStream:
    """Connect to the probe server of worker 0, and stay connected.

    Args:
        host: the host of worker 0's address.
        offer: the `offer` of worker 0's probe server.
        rank: the rank of this worker.
        seconds: how long to try.

    Raises:
        OSError: if nothing answers.
    """
    port, token = offer
    line = MessageStream(socket.create_connection((host, port), seconds))
    line.send({"token": token, "rank": rank})
    return line


def measure(host: str, offer: Any, sending: float, seconds: float) -> dict[str, float]:
    """Measure the connection to another worker's probe server with `pairs.call`.

    Args:
        host: the host of the other worker's address.
        offer: the `offer` of the other worker's probe server.
        sending: how many seconds to send in each direction.
        seconds: how long to wait for an answer.

    Raises:
        OSError: if nothing answers, or if another program answers.
    """
    port, token = offer
    with socket.create_connection((host, port), seconds) as connection:
        connection.sendall(json_lines.encode({"token": token, "seconds": sending}))
        try:
            said = json_lines.receive(connection, seconds)
        except EOFError:
            said = None
        if not said or not said.get("ready"):
            raise ConnectionError("another program answers at this port, not the doctor")
        connection.settimeout(seconds)
        return link_benchmark.measure_link(connection, sending)


class MessageStream:
    """A connection over which worker 0 and another worker exchange messages.

    Args:
        connection: a connected socket; only this object may use and close it.
    """

    def __init__(self, connection: socket.socket):
        self._connection, self._arrived = connection, b""

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: if the other side has closed the connection, or does not read.
        """
        self._connection.settimeout(_SECONDS_FOR_A_WORD)
        self._connection.sendall(json_lines.encode(message))

    def receive(self, seconds: float) -> dict[str, Any]:
        """Wait for a message and return it; for an invalid message, return an empty dict.

        Raises:
            TimeoutError: if no message comes in time.
            OSError: if the other side has closed the connection.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._arrived:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            piece = self._connection.recv(1 << 16)
            if not piece or len(self._arrived) > json_lines.LONGEST_LINE:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
            self._arrived += piece
        line, _, self._arrived = self._arrived.partition(b"\n")
        return json_lines.decode(line) or {}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
