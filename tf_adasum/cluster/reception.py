"""The port at which a task is called: each caller gets a thread, and strangers take few of them.

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

# At a time, besides one of each task. With one more the oldest has to go: a task needs
# milliseconds, and whoever stays longer is likely to be none.
MOST_STRANGERS = 32

_BACKLOG = 1024  # callers that wait for that, in the kernel
_SECONDS_BETWEEN_LOOKS = 0.1


class Reception:
    """The port is open from the beginning; callers are answered between `open` and `close`.

    Args:
        listener: a socket that listens, as `listening` returns; it becomes this object's.
        answer: function of a connection that answers its caller; the connection is closed then.
        tasks: how many callers besides strangers there may be at a time.
    """

    def __init__(
        self, listener: socket.socket, answer: Callable[[socket.socket], None], tasks: int
    ):
        self._listener, self._answer = listener, answer
        self._most = MOST_STRANGERS + tasks
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

    def knows(self, connection: socket.socket) -> None:
        """Count a caller among the strangers no more: it may stay for as long as it is answered."""
        with self._lock, contextlib.suppress(ValueError):
            self._callers.remove(connection)

    def _accept(self):
        """Give each caller a thread: one that says nothing keeps nobody waiting."""
        while not self._closing.is_set():
            json_lines.wait([self._listener], _SECONDS_BETWEEN_LOOKS)
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:  # the caller is gone again, or there is no file descriptor for it
                time.sleep(_SECONDS_BETWEEN_LOOKS)
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
                self.knows(connection)


def listening(cluster: Cluster) -> socket.socket:
    """Return a socket that listens on this task's port.

    Raises:
        OSError: naming the task, and who uses the port if it is in use.
    """
    host, port = cluster.host_and_port(cluster.rank)
    listener = None
    try:
        listener = addresses.bound(host, port, reuse=True)
        listener.listen(_BACKLOG)
        listener.setblocking(False)  # a caller may be gone before it is accepted
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
    """Return the error that this task's port is in use.

    Args:
        cluster: the `Cluster`.
        user: who uses it, as `ports.user_of` names it; None where it is not known.
    """
    return OSError(
        errno.EADDRINUSE,
        f"the port of {cluster.named([cluster.rank])} is in use by {user or 'another process'}. "
        f"End that process or give the task another port {see('TFA-205')}",
    )
