"""Open a port on each worker while the doctor checks several workers.

Other workers measure their connection to this port. They also stay connected to the port of worker
0, from which they receive instructions. Both ends prove that they have the secret of the cluster,
and a token that the workers exchange at the rendezvous. Uses only the standard library.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tf_adasum.cluster import addresses, json_lines
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.doctor import link_benchmark

# How many unauthenticated clients there may be at a time, in addition to one from each worker. If
# one more client connects, the oldest client is disconnected. A worker authenticates within
# milliseconds, so a client that stays longer is probably not a worker.
_MOST_UNAUTHENTICATED = 32

_SECONDS_FOR_A_MESSAGE = 10.0
_POLL_SECONDS = 0.1
_BACKLOG = 1024


class ProbeServer:
    """Serves other workers on an open port until the context ends.

    Args:
        host: the host of this worker's address.
        workers: the number of workers. It is added to the limit for unauthenticated clients.
        secret: the `Secret` of the cluster.

    Attributes:
        endpoint: the port and the token, which other workers need to connect.
    """

    def __init__(self, host: str, workers: int, secret: Secret):
        self._listener = addresses.bound(host, 0, reuse=False)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        token = secrets.token_hex(16)
        self._secret = secret.with_token(token)
        self.endpoint = [self._listener.getsockname()[1], token]
        self._most_unauthenticated = _MOST_UNAUTHENTICATED + workers
        self._unauthenticated: collections.deque[socket.socket] = collections.deque()
        self._waiting: dict[int, MessageStream] = {}
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> ProbeServer:
        """Start to serve clients."""
        self._accepting.start()
        return self

    def __exit__(self, *exception) -> None:
        """Close the port, and the connections of waiting workers."""
        self._closing.set()
        self._accepting.join()
        self._listener.close()
        for stream in self._waiting.values():
            stream.close()

    def waiting(self, ranks: Iterable[int], seconds: float) -> dict[int, MessageStream]:
        """Return the open connections to the workers that wait for instructions.

        Args:
            ranks: the ranks of the expected workers.
            seconds: how long to wait for them.
        """
        with self._change:
            self._change.wait_for(lambda: self._waiting.keys() >= {*ranks}, seconds)
            return {rank: self._waiting[rank] for rank in ranks if rank in self._waiting}

    def _accept(self):
        """Start a thread for each client, so that a silent client does not delay others."""
        while not self._closing.is_set():
            json_lines.wait([self._listener], _POLL_SECONDS)
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:  # the client has disconnected, or there is no free file descriptor
                time.sleep(_POLL_SECONDS)
                continue
            with self._change:
                self._unauthenticated.append(connection)
                if len(self._unauthenticated) > self._most_unauthenticated:
                    with contextlib.suppress(OSError):  # its thread ends
                        self._unauthenticated.popleft().shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                self._answer(connection)
            except OSError:
                pass  # the client gets an error as well
            finally:
                self._note_authenticated(connection)

    def _note_authenticated(self, connection):
        """Stop counting a client as unauthenticated."""
        with self._change, contextlib.suppress(ValueError):
            self._unauthenticated.remove(connection)

    def _answer(self, connection):
        stream = MessageStream(connection, self._secret, is_server=True)
        first = stream.receive(_SECONDS_FOR_A_MESSAGE)
        self._note_authenticated(connection)
        if isinstance(first.get("rank"), int):
            with self._change:
                self._waiting[first["rank"]] = stream
                self._change.notify_all()
            self._closing.wait()
        elif isinstance(first.get("seconds"), (int, float)):
            stream.send({"ready": True})
            connection.settimeout(_SECONDS_FOR_A_MESSAGE)
            seconds = min(first["seconds"], link_benchmark.LONGEST_SECONDS)
            link_benchmark.serve_link(connection, seconds)


def wait_for_instructions(
    host: str, endpoint: Any, secret: Secret, rank: int, seconds: float
) -> MessageStream:
    """Connect to the probe server of worker 0; the result receives the instructions.

    Args:
        host: the host of worker 0's address.
        endpoint: the `endpoint` of worker 0's probe server.
        secret: the `Secret` of the cluster.
        rank: the rank of this worker.
        seconds: how long to try.

    Raises:
        OSError: if nothing answers.
    """
    port, token = endpoint
    connection = socket.create_connection((host, port), seconds)
    stream = MessageStream(connection, secret.with_token(token), is_server=False)
    stream.send({"rank": rank})
    return stream


def measure(
    host: str, endpoint: Any, secret: Secret, sending: float, seconds: float
) -> dict[str, float]:
    """Measure the connection to another worker's probe server with `link_benchmark.measure_link`.

    Args:
        host: the host of the other worker's address.
        endpoint: the `endpoint` of the other worker's probe server.
        secret: the `Secret` of the cluster.
        sending: how many seconds to send in each direction.
        seconds: how long to wait for an answer.

    Raises:
        OSError: if nothing answers, or if another program answers.
    """
    port, token = endpoint
    with socket.create_connection((host, port), seconds) as connection:
        stream = MessageStream(connection, secret.with_token(token), is_server=False)
        try:
            stream.send({"seconds": sending})
            stream.receive(seconds)
        except ConnectionResetError:
            raise ConnectionError(
                "the connection was closed: another program uses this port, or the secrets differ"
            ) from None
        connection.settimeout(seconds)
        return link_benchmark.measure_link(connection, sending)


class MessageStream:
    """An authenticated connection with methods that block.

    Args:
        connection: a connected socket, which this object will close.
        secret: the `Secret`, with the token.
        is_server: whether this end has accepted the connection.
    """

    def __init__(self, connection: socket.socket, secret: Secret, *, is_server: bool):
        self._channel = Channel(
            connection, secret, is_server=is_server, longest_message=json_lines.LONGEST_LINE
        )
        self._arrived: collections.deque[Any] = collections.deque()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: if the other end has closed the connection, or does not prove the secret.
        """
        self._wait(lambda: self._channel.is_authenticated, _SECONDS_FOR_A_MESSAGE)
        self._channel.send(message)
        self._check_open()

    def receive(self, seconds: float) -> dict[str, Any]:
        """Wait for a message and return it; for an invalid message, return an empty dict.

        Raises:
            TimeoutError: if no message comes in time.
            OSError: if the other end has closed the connection.
        """
        self._wait(lambda: self._arrived, seconds)
        message = self._arrived.popleft()
        return message if isinstance(message, dict) else {}

    def _wait(self, is_over: Callable[[], Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_over():
            self._check_open()
            if (remaining := deadline - time.monotonic()) <= 0:
                raise TimeoutError("timed out")
            json_lines.wait([self._channel.socket], min(remaining, _POLL_SECONDS))
            self._arrived += self._channel.receive()
            self._channel.flush()

    def _check_open(self):
        if not self._channel.is_open:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()
