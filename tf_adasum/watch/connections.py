"""Connections that tell each worker what the others do, while TensorFlow is busy.

Every worker keeps a connection to worker 0, the server. One message travels at a time in either
direction: a client's own status to the server, and what the server knows to all clients. A
connection that ends tells of a process that has ended, within milliseconds; one that is silent, of
a process that is stopped or cannot be reached.

The server has a port of its own, and a token from the rendezvous keeps strangers out. Standard
library only.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import time
from typing import Any

from tf_adasum.cluster import addresses
from tf_adasum.cluster.json_lines import Connection

_SECONDS_TO_CONNECT = 5.0
_SECONDS_TO_CLOSE = 1.0


class Server:
    """Worker 0's end: listens, and knows which connection belongs to which rank.

    Args:
        host: the host in worker 0's address; where that is this machine alone nobody else can
            connect.

    Attributes:
        offer: what clients need to connect, for the rendezvous.
        connections: dict from ranks to `Connection`.
    """

    def __init__(self, host: str):
        self._listener = addresses.bound(host, 0, reuse=True)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._token = secrets.token_hex(16)
        self._strangers: list[Connection] = []
        self.offer = {"port": self._listener.getsockname()[1], "token": self._token}
        self.connections: dict[int, Connection] = {}

    def sockets(self) -> list[socket.socket]:
        """Return what to wait for."""
        connections = [*self.connections.values(), *self._strangers]
        return [self._listener, *(each.socket for each in connections if each.is_open)]

    def receive(self) -> list[tuple[int, dict[str, Any]]]:
        """Return pairs of a rank and a message that has arrived from it."""
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                self._strangers.append(Connection(self._listener.accept()[0]))
        messages = []
        for connection in list(self._strangers):
            introduction, *others = connection.receive() or [None]
            if introduction is not None:
                self._strangers.remove(connection)
                rank = self._introduced(introduction)
                if rank is None:
                    connection.close()
                    continue
                self.connections[rank] = connection
                messages += [(rank, message) for message in others]
            elif not connection.is_open or self._waits_too_long(connection):
                self._strangers.remove(connection)
                connection.close()
        for rank, connection in self.connections.items():
            if connection.is_open:
                messages += [(rank, message) for message in connection.receive()]
        return messages

    def _introduced(self, message):
        rank, token = message.get("rank"), message.get("token")
        is_text = isinstance(token, str) and token.isascii()
        is_client = is_text and hmac.compare_digest(token, self._token)
        return rank if is_client and type(rank) is int and rank not in self.connections else None

    @staticmethod
    def _waits_too_long(connection):
        return time.monotonic() > connection.begun + _SECONDS_TO_CONNECT

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to all clients."""
        for connection in self.connections.values():
            if connection.is_open:
                connection.send(message)

    def close(self) -> None:
        """Close the port and all connections."""
        self._listener.close()
        deadline = time.monotonic() + _SECONDS_TO_CLOSE
        for connection in [*self.connections.values(), *self._strangers]:
            connection.close(deadline)


class Client:
    """The end of any other worker.

    Args:
        host: worker 0's.
        offer: of the `Server`.
        rank: this worker's.

    Attributes:
        connections: dict from the rank 0 to the `Connection`.

    Raises:
        OSError: if it cannot connect.
        KeyError, TypeError, ValueError: for an offer that is none.
    """

    def __init__(self, host: str, offer: dict[str, Any], rank: int):
        where = (host, int(offer["port"]))
        self._server = Connection(socket.create_connection(where, _SECONDS_TO_CONNECT))
        self.connections = {0: self._server}
        self.send({"rank": rank, "token": offer["token"]})

    def sockets(self) -> list[socket.socket]:
        """Return what to wait for."""
        return [self._server.socket] if self._server.is_open else []

    def receive(self) -> list[tuple[int, dict[str, Any]]]:
        """Return pairs of the rank 0 and a message that has arrived from it."""
        return [(0, each) for each in self._server.receive()] if self._server.is_open else []

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the server."""
        self._server.send(message)

    def close(self) -> None:
        """Close the connection, so that the server still reads what was sent."""
        self._server.close(time.monotonic() + _SECONDS_TO_CLOSE)
