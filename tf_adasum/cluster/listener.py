"""Answers the callers at a task's port, each in a thread; limits unauthenticated clients.

Standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable

from tf_adasum.cluster import addresses, json_lines, ports
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import see

# How many unauthenticated clients there may be at a time, in addition to one connection from each
# task. If one more client connects, the oldest client is disconnected. A task authenticates within
# milliseconds, so a client that stays longer is probably not a task.
MOST_UNAUTHENTICATED = 32

_BACKLOG = 1024  # callers that wait in the kernel
_POLL_SECONDS = 0.1


class Listener:
    """Answers callers between `open` and `close`. Before `open`, callers can connect, but wait.

    Args:
        listener: a listening socket, such as the result of `listening_socket`. This object will
            close it.
        answer: function that answers the caller of a connection. After its return, this object
            closes the connection.
        tasks: the number of tasks that may connect. There may be up to `tasks +
            MOST_UNAUTHENTICATED` unauthenticated connections at a time.
    """

    def __init__(
        self, listener: socket.socket, answer: Callable[[socket.socket], None], tasks: int
    ):
        self._listener, self._answer = listener, answer
        self._most = MOST_UNAUTHENTICATED + tasks
        self._callers: collections.deque[socket.socket] = collections.deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def open(self) -> None:
        """Begin to answer callers."""
        self._accepting.start()

    def close(self) -> None:
        """Close the port."""
        self._closing.set()
        if self._accepting.is_alive():
            self._accepting.join()
        self._listener.close()

    def mark_authenticated(self, connection: socket.socket) -> None:
        """Count a caller as authenticated, so that it may stay until it is answered."""
        with self._lock, contextlib.suppress(ValueError):
            self._callers.remove(connection)

    def _accept(self):
        """Start a thread for each caller, so that a silent caller does not delay others."""
        while not self._closing.is_set():
            json_lines.wait([self._listener], _POLL_SECONDS)
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:  # the caller has disconnected, or there is no free file descriptor
                time.sleep(_POLL_SECONDS)
                continue
            with self._lock:
                self._callers.append(connection)
                if len(self._callers) > self._most:
                    with contextlib.suppress(OSError):
                        self._callers.popleft().shutdown(socket.SHUT_RDWR)  # its thread ends
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                self._answer(connection)
            finally:
                self.mark_authenticated(connection)


def listening_socket(cluster: Cluster) -> socket.socket:
    """Return a socket that listens on this task's port.

    Raises:
        OSError: if the task cannot listen. The message names the task, and the process that uses
            the port, if any.
    """
    host, port = cluster.host_and_port(cluster.rank)
    listener = None
    try:
        listener = addresses.bound(host, port, reuse=True)
        listener.listen(_BACKLOG)
        listener.setblocking(False)  # a caller may disconnect before it is accepted
    except OSError as error:
        if listener:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(cluster, ports.user_of(port)) from error
        raise OSError(
            error.errno,
            f"{cluster.named([cluster.rank])} cannot listen on its port: {error} {see('TFA-205')}",
        ) from error
    return listener


def port_in_use(cluster: Cluster, user: str | None) -> OSError:
    """Return the error for a port of this task that is in use.

    Args:
        cluster: the `Cluster`.
        user: the process that uses the port, as `ports.user_of` returns it; None if not known.
    """
    return OSError(
        errno.EADDRINUSE,
        f"the port of {cluster.named([cluster.rank])} is in use by {user or 'another process'}. "
        f"End that process or give the task another port {see('TFA-205')}",
    )
