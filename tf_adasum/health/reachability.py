"""Tests connections to the other workers if all workers wait for each other.

A connection to TensorFlow's port of another worker shows whether the link to that worker works. The
link may be cut although each of the two workers reaches worker 0. The connection is closed at once.
A firewall may block only the port of UCX, so this port is also tested. UCX does not listen on this
port any more, so the link works if the other machine refuses the connection. Standard library only.
"""

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping

from tf_adasum.cluster import addresses
from tf_adasum.cluster.tasks import Cluster, listed
from tf_adasum.cluster.timeouts import PATIENCE_SECONDS

# An answer takes milliseconds. If a packet is lost, the kernel tries again after one second.
SECONDS_TO_CONNECT = 3.0

_REFUSED = os.strerror(errno.ECONNREFUSED)


class Reachability:
    """Tries to connect to the other workers, in a thread for each try.

    Args:
        cluster: the `Cluster`.

    Attributes:
        unreachable: a line with the workers that could not be reached in the last try, and why.
        ucx_ports: dict from ranks to the IP address and port of UCX, which are tested in addition.
            The port may be closed.
    """

    def __init__(self, cluster: Cluster):
        self.unreachable = ""
        self.ucx_ports: Mapping[int, tuple[str, int]] = {}
        self._cluster = cluster
        self._next = 0.0

    def try_now_and_then(self) -> None:
        """Start a try, unless the last try began less than 10 seconds ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PATIENCE_SECONDS
            threading.Thread(target=self.try_all, daemon=True, name="tf_adasum reach").start()

    def try_all(self) -> str:
        """Try to connect to all other workers, and return `unreachable`."""
        ranks = [each for each in range(len(self._cluster.names)) if each != self._cluster.rank]
        endpoints = self.ucx_ports
        words = connect_errors([*map(self._cluster.host_and_port, ranks), *endpoints.values()])
        silent = {
            rank: f"{word} at {addresses.joined(*endpoint)}, the port of UCX"
            for (rank, endpoint), word in zip(endpoints.items(), words[len(ranks) :], strict=True)
            if word not in ("", _REFUSED)
        }
        silent |= {rank: word for rank, word in zip(ranks, words, strict=False) if word}
        names = [f"{self._cluster.named([rank])}: {silent[rank]}" for rank in sorted(silent)]
        self.unreachable = listed(names, 3)
        return self.unreachable

    def forget(self) -> None:
        """Clear the results, because this worker does not wait any more."""
        self.unreachable, self._next = "", 0.0


def connect_errors(endpoints: list[tuple[str, int]]) -> list[str]:
    """Return for each host and port why no connection can be made; "" if it can be made."""
    words = [f"no answer within {SECONDS_TO_CONNECT:.0f} s"] * len(endpoints)
    deadline = time.monotonic() + SECONDS_TO_CONNECT
    with contextlib.ExitStack() as callers, selectors.PollSelector() as selector:
        for index, (host, port) in enumerate(endpoints):
            try:
                family, kind, protocol, _, where = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )[0]
                caller = callers.enter_context(socket.socket(family, kind, protocol))
                caller.setblocking(False)
                caller.connect_ex(where)
                selector.register(caller, selectors.EVENT_WRITE, (caller, index))
            except OSError as error:
                words[index] = error.strerror or str(error)
        while selector.get_map() and (seconds := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(seconds):
                caller, index = key.data
                number = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                words[index] = os.strerror(number) if number else ""
                selector.unregister(caller)
    return words
