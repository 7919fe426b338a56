"""Connections through which workers exchange their statuses, while TensorFlow is busy.

Worker 0 is the server. Every other worker is a client, and keeps a connection to the server. A
client sends its own status to the server, and the server sends all statuses to all clients, as one
value (`aggregate`). In each
direction of a connection, only one message is sent at a time. If a connection closes, the other
process has ended; this is detected within milliseconds. If a connection is silent, the other
process is suspended or cannot be reached.

The server has its own port. Both ends prove that they have the secret of the cluster, and the token
that the clients received at the rendezvous (`cluster.channel`). A client sends its proof, its rank
and its status at once, so that they have arrived even if the server is busy. The server accepts
only a few unauthenticated clients at a time, so that they use up neither the file descriptors nor
the time of the training. If the server refuses a worker because of too many clients, the worker
connects again. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import addresses, json_lines, ports
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.json_lines import LONGEST_LINE
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.environment_variables import WATCH_PORT
from tf_adasum.errors import see
from tf_adasum.health import messages

_SECONDS_TO_CONNECT = 5.0
_SECONDS_TO_CLOSE = 1.0
_SECONDS_BETWEEN_TRIES = 2.0
_SECONDS_OF_A_CALL = 0.02  # after which a client looks again whether its new connection is there

# How many unauthenticated clients may keep a file descriptor, and how many clients the server
# accepts in one round.
MOST_UNAUTHENTICATED = 16
_MOST_CALLERS = 64

# How many clients may wait in the kernel, without a file descriptor. The number is large, because
# Python does not run on worker 0 while TensorFlow starts.
_BACKLOG = 1024

# Seconds for which the server accepts no clients after an error, such as no free file descriptor.
_SECONDS_WITHOUT_DESCRIPTORS = 1.0

_BYTES_WITHOUT_READING = 1 << 14  # bytes that the kernel buffers for a client

# A client that was not accepted connects again for this many seconds after its first attempt.
_SECONDS_TO_BE_ACCEPTED = 30.0

_SECONDS_BETWEEN_REFUSALS = 30.0

# A worker's new connection may replace its old connection if the old one has ended, or has been
# silent for this many seconds.
_SECONDS_TO_REPLACE = 10.0


class RefusalLog:
    """Reports refused connections and messages, at most one line in 30 seconds."""

    def __init__(self) -> None:
        self._count, self._next = 0, 0.0

    def report(self, what: str) -> None:
        """Count a refusal, and report it if no other was reported in the last 30 seconds.

        Args:
            what: a text about what was refused, from which sender, and why. It must not contain
                text from the network.
        """
        self._count += 1
        if time.monotonic() < self._next:
            return
        more = f" ({self._count} refusals so far)" if self._count > 1 else ""
        messages.say(f"the failure detector refuses {what}{more}")
        self._next = time.monotonic() + _SECONDS_BETWEEN_REFUSALS


class Server:
    """Runs on worker 0: listens on a port, and keeps a connection to each other worker.

    Args:
        host: the host in worker 0's address. If it is a loopback address, only this machine can
            connect.
        workers: the number of workers, including worker 0.
        secret: the `Secret` of the cluster.
        port: the port. Defaults to 0, so that the system chooses a port.

    Raises:
        OSError: if the server cannot listen on the port.

    Attributes:
        endpoint: the data that clients need to connect. Clients receive it at the rendezvous.
        connections: dict from ranks to `Channel`.
        refusals: the `RefusalLog`.
    """

    def __init__(self, host: str, workers: int, secret: Secret, port: int = 0):
        self._listener = _listening(host, port)
        self._accepts_from = 0.0  # a time, by `time.monotonic`
        self._secret, self._workers = secret, workers
        self._token = secrets.token_hex(16)
        self._of_nonces: dict[str, Channel] = {}  # authenticated connections, by `client_nonce`
        # Connections without a rank, with the hosts of the clients; the oldest first.
        self._unauthenticated: list[tuple[Channel, str]] = []
        self.endpoint = {"port": self._listener.getsockname()[1], "token": self._token}
        self.connections: dict[int, Channel] = {}
        self._ranks: dict[int, int] = {}  # by the file descriptors of the open connections
        self._poll = select.poll()  # opens no file descriptor
        self.refusals = RefusalLog()

    def wait(self, seconds: float) -> None:
        """Wait until data arrives, or the time is over.

        After all workers have connected, a new client does not end this wait. It is accepted only
        after the wait has ended for another reason, so that unauthenticated clients do not cause
        more work.
        """
        is_full = len(self._ranks) == self._workers - 1
        is_deaf = is_full or time.monotonic() < self._accepts_from
        others = (
            [] if is_deaf else [self._listener, *(each.socket for each, _ in self._unauthenticated)]
        )
        for each in others:
            self._poll.register(each, select.POLLIN)
        self._poll.poll(math.ceil(max(0.0, seconds) * 1000))
        for each in others:
            self._poll.unregister(each)

    def receive(self) -> list[tuple[int, dict[str, Any] | None]]:
        """Return pairs of a sender's rank and a message; None if its connection has ended."""
        self._accept()
        messages: list[tuple[int, dict[str, Any] | None]] = []
        clients, self._unauthenticated = self._unauthenticated, []
        for connection, host in clients:
            received = _received(connection)
            first, others = (received[0] if received else None), received[1:]
            if connection.is_authenticated and self._is_repeated(connection):
                self._refuse(connection, host, "it repeats an earlier connection")
            elif first is not None:
                rank = self._rank_in(first)
                if rank is not None and self._has_free_slot(rank):
                    self.connections[rank] = connection
                    self._ranks[connection.socket.fileno()] = rank
                    self._poll.register(connection.socket, select.POLLIN)
                    messages += [(rank, message) for message in others]
                    continue
                self._refuse(connection, host, "its rank is wrong, or taken")
            elif not connection.is_open or self._waits_too_long(connection):
                why = "it disconnected, or did not authenticate and send its rank in time"
                self._refuse(connection, host, why)
            else:
                self._unauthenticated.append((connection, host))
        unauthenticated = [each for each in self._unauthenticated if not each[0].is_authenticated]
        for connection, host in unauthenticated[:-MOST_UNAUTHENTICATED]:
            self._unauthenticated.remove((connection, host))
            self._refuse(connection, host, "too many clients have not authenticated")
        for number, _ in self._poll.poll(0):
            rank = self._ranks[number]
            connection = self.connections[rank]
            messages += [(rank, message) for message in _received(connection)]
            if not connection.is_open:
                self._forget(connection)
                messages.append((rank, None))
        return messages

    def _forget(self, connection: Channel) -> None:
        """Wait for no more data from a connection."""
        if self._ranks.pop(connection.socket.fileno(), None) is not None:
            self._poll.unregister(connection.socket)

    def _has_free_slot(self, rank: int) -> bool:
        """Return whether a worker has no connection, or only one that does not work any more."""
        present = self.connections.pop(rank, None)
        if present is None:
            return True
        silent = time.monotonic() - present.last_received_at
        if present.is_open and silent < _SECONDS_TO_REPLACE:
            self.connections[rank] = present
            return False
        self._forget(present)
        present.close()
        return True

    def _accept(self) -> None:
        """Accept some of the waiting clients; the others wait until the next call."""
        if time.monotonic() < self._accepts_from:
            return
        try:
            for _ in range(_MOST_CALLERS):
                caller, (host, *_) = self._listener.accept()
                self._unauthenticated.append((self._channel(caller), host))
        except BlockingIOError:
            pass
        except ConnectionError:  # the client has disconnected
            pass
        except OSError as error:
            self._accepts_from = time.monotonic() + _SECONDS_WITHOUT_DESCRIPTORS
            self.refusals.report(f"connections for now: {error}")

    def _refuse(self, connection: Channel, host: str, why: str) -> None:
        connection.close()
        self.refusals.report(f"a connection from {host}: {why}")

    def _channel(self, caller: socket.socket) -> Channel:
        return Channel(
            caller,
            self._secret,
            is_server=True,
            longest_message=LONGEST_LINE,
            server_nonce=self._token,
        )

    def _is_repeated(self, connection: Channel) -> bool:
        """Return whether an earlier connection had the same nonce."""
        nonce = connection.client_nonce or ""
        return self._of_nonces.setdefault(nonce, connection) is not connection

    def _rank_in(self, message: dict[str, Any]) -> int | None:
        rank = message.get("rank")
        return rank if type(rank) is int and 0 < rank < self._workers else None

    @staticmethod
    def _waits_too_long(connection: Channel) -> bool:
        return time.monotonic() > connection.opened_at + _SECONDS_TO_CONNECT

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to all clients."""
        text = json.dumps(message)
        for connection in self.connections.values():
            if connection.is_open:
                connection.send_newest(text)

    def close(self) -> None:
        """Close the port and all connections."""
        self._listener.close()
        deadline = time.monotonic() + _SECONDS_TO_CLOSE
        for connection, _ in self._unauthenticated:
            connection.close()
        for connection in self.connections.values():
            connection.close(deadline)


def _listening(host: str, port: int) -> socket.socket:
    listener = None
    try:
        listener = addresses.bound(host, port, reuse=True)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BYTES_WITHOUT_READING)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        if listener:
            listener.close()
        user = ports.user_of(port) if error.errno == errno.EADDRINUSE else None
        given = f", {WATCH_PORT}={port}" if port else ""
        used_by = f". It is in use by {user}" if user else ""
        raise OSError(
            error.errno,
            f"worker 0 cannot listen on the port of the failure detector{given}: {error}{used_by} "
            f"{see('TFA-205')}",
        ) from error
    return listener


def _received(connection: Channel) -> list[dict[str, Any]]:
    """Return the messages that have arrived; a message that is no dict closes the connection."""
    messages = connection.receive()
    if not all(isinstance(message, dict) for message in messages):
        connection.is_open = False
        return []
    return messages


def connect(
    cluster: Cluster, endpoint: dict[str, Any], secret: Secret, use: Callable[[Client], None]
) -> None:
    """Connect to worker 0; if this fails, a thread keeps trying.

    Args:
        cluster: the `Cluster`.
        endpoint: the endpoint of the `Server`.
        secret: the `Secret` of the cluster.
        use: function that is called with the `Client`.
    """
    host, _ = cluster.host_and_port(0)

    def keep_trying() -> None:
        while True:
            time.sleep(_SECONDS_BETWEEN_TRIES)
            with contextlib.suppress(OSError):
                return use(Client(host, endpoint, cluster.rank, secret))

    try:
        client = Client(host, endpoint, cluster.rank, secret)
    except (OSError, KeyError, TypeError, ValueError) as error:
        messages.say(
            f"{cluster.names[cluster.rank]} cannot reach port {endpoint.get('port')} of "
            f"{cluster.named([0])} ({error}). Until this works, only TensorFlow detects lost "
            "workers, which takes longer."
        )
        if isinstance(error, OSError):
            threading.Thread(target=keep_trying, daemon=True, name="tf_adasum connect").start()
        return
    use(client)


class Client:
    """Runs on every worker except worker 0, and keeps a connection to worker 0.

    Args:
        host: the host of worker 0.
        endpoint: the endpoint of the `Server`.
        rank: the rank of this worker.
        secret: the `Secret` of the cluster.

    Attributes:
        refusals: the `RefusalLog`.

    Raises:
        OSError: if the client cannot connect.
        KeyError, TypeError, ValueError: if the endpoint is not valid.
    """

    def __init__(self, host: str, endpoint: dict[str, Any], rank: int, secret: Secret):
        port, token = endpoint["port"], endpoint["token"]
        if type(port) is not int or not 0 < port < 1 << 16:
            raise ValueError("no port")
        if not isinstance(token, str):
            raise ValueError("no token")
        self._where, self._rank = (host, port), rank
        self._secret, self._token = secret, token
        self._until = time.monotonic() + _SECONDS_TO_BE_ACCEPTED
        self._is_accepted = self._is_calling = False
        self._replacement: socket.socket | None = None
        self.refusals = RefusalLog()
        self._use(socket.create_connection(self._where, _SECONDS_TO_CONNECT))

    @property
    def connections(self) -> dict[int, Channel]:
        """Dict from the rank 0 to the `Channel`; empty while no connection is open or possible."""
        return {} if self._is_calling else {0: self._server}

    def reconnect(self) -> None:
        """Open another connection in a separate thread, because the current one is silent."""
        threading.Thread(target=self._reconnect, daemon=True, name="tf_adasum reconnect").start()

    def _reconnect(self) -> None:
        with contextlib.suppress(OSError):
            self._replacement = socket.create_connection(self._where, _SECONDS_TO_CONNECT)
        self._is_calling = False

    def _use(self, connection: socket.socket) -> None:
        self._server = Channel(
            connection,
            self._secret,
            is_server=False,
            longest_message=LONGEST_LINE,
            server_nonce=self._token,
        )
        self._server.send({"rank": self._rank})

    def wait(self, seconds: float) -> None:
        """Wait until data arrives, or the time is over."""
        is_open = self._server.is_open and not self._is_calling
        if self._is_calling:
            seconds = min(seconds, _SECONDS_OF_A_CALL)
        json_lines.wait([self._server.socket] if is_open else [], seconds)

    def receive(self) -> list[tuple[int, dict[str, Any] | None]]:
        """Return pairs of the rank 0 and a message; None if the connection has ended."""
        if self._replacement is not None:
            received_at = self._server.last_received_at
            connection, self._replacement = self._replacement, None
            self._server.close()
            self._use(connection)
            self._server.last_received_at = received_at  # so far only the kernel has answered
        if self._is_calling:
            return []
        if not self._server.is_open:
            return [(0, None)]
        messages: list[dict[str, Any] | None] = [*_received(self._server)]
        self._is_accepted |= bool(messages)
        if not self._server.is_open and not self._is_accepted and time.monotonic() < self._until:
            self._server.close()  # worker 0 has refused this client, because too many wait
            self._is_calling = True  # if nobody listens, the server has ended
            self.reconnect()
        elif not self._server.is_open:
            messages.append(None)
        return [(0, message) for message in messages]

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the server."""
        self._server.send_newest(json.dumps(message))

    def close(self) -> None:
        """Close the connection after the server has read all messages, or after a second."""
        self._server.close(time.monotonic() + _SECONDS_TO_CLOSE)
