"""Whether the other workers can be connected to: tried where all wait for each other.

A connection to TensorFlow's port shows a link that is cut between two workers, which both may still
reach worker 0. It is closed at once. Standard library only.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time

from tf_adasum.cluster.tasks import Cluster

# An answer takes milliseconds; the kernel tries a second time after one second.
SECONDS_TO_CONNECT = 3.0

SECONDS_BETWEEN_TRIES = 10.0

# How many of those that cannot be reached are told.
_MOST_TOLD = 3


class Reachability:
    """Tries to connect to the other workers, in a thread that lives for one try.

    Args:
        cluster: the `Cluster`.

    Attributes:
        unreachable: whom this worker could not connect to in the last try, and why: one line.
    """

    def __init__(self, cluster: Cluster):
        self.unreachable = ""
        self._cluster, self._lock = cluster, threading.Lock()
        self._next = 0.0

    def try_now_and_then(self) -> None:
        """Begin a try, unless there was one a short time ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_TRIES
            threading.Thread(target=self.try_all, daemon=True, name="tf_adasum reach").start()

    def try_all(self) -> str:
        """Connect to all; return `unreachable`."""
        with self._lock:
            ranks = [each for each in range(len(self._cluster.names)) if each != self._cluster.rank]
            words = answers([self._cluster.host_and_port(rank) for rank in ranks])
            silent = [(rank, word) for rank, word in zip(ranks, words, strict=True) if word]
            told = [f"{self._cluster.named([rank])}: {word}" for rank, word in silent]
            more = f", and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
            self.unreachable = ", ".join(told[:_MOST_TOLD]) + more
            return self.unreachable

    def forget(self) -> None:
        """Take what was found for past: this worker does not wait any more."""
        self.unreachable, self._next = "", 0.0


def answers(places: list[tuple[str, int]]) -> list[str]:
    """Return for each host and port why it cannot be connected to; "" where it can."""
    words = [f"no answer within {SECONDS_TO_CONNECT:.0f} s"] * len(places)
    deadline = time.monotonic() + SECONDS_TO_CONNECT
    with selectors.PollSelector() as selector:
        for index, (host, port) in enumerate(places):
            try:
                family, kind, protocol, _, where = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )[0]
                caller = socket.socket(family, kind, protocol)
                caller.setblocking(False)
                caller.connect_ex(where)
                selector.register(caller, selectors.EVENT_WRITE, index)
            except OSError as error:
                words[index] = error.strerror or str(error)
        while selector.get_map() and (seconds := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(seconds):
                number = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                words[key.data] = os.strerror(number) if number else ""
                selector.unregister(key.fileobj)
                key.fileobj.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()
    return words
