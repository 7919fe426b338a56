"""Decides whether silent workers have stopped, or whether only their messages do not arrive.

A collective ends only after all workers have taken part in it. So as long as collectives end, no
worker has stopped. Standard library only.
"""

import time


class HeartbeatDetector:
    """Keeps track of the workers whose messages do not arrive.

    Args:
        limit: seconds of silence after which a worker that takes part in no collective counts as
            lost.

    Attributes:
        silent_but_active: set of the ranks that take part in collectives, although they are silent.
    """

    def __init__(self, limit: float):
        self.limit = limit
        self.silent_but_active: set[int] = set()
        self._ended: int | None = None
        self._progressed = float("-inf")

    def note(self, ended: int | None) -> None:
        """Note how many collectives have ended; `ended` is None while no worker is silent."""
        if self._ended is not None and ended is not None and ended > self._ended:
            self._progressed = time.monotonic()
        self._ended = ended

    def has_stopped(self, rank: int, silent: float, waits: float) -> bool:
        """Return whether a worker counts as lost.

        Args:
            rank: the rank of the worker.
            silent: for how many seconds the worker has been silent.
            waits: for how many seconds this worker has been in a collective.
        """
        if silent <= self.limit:
            self.silent_but_active.discard(rank)
            return False
        if time.monotonic() - self._progressed <= self.limit:
            self.silent_but_active.add(rank)
            return False
        # While there are no collectives (worker 0 may be saving), a worker that took part in the
        # collectives before does not count as lost.
        return rank not in self.silent_but_active or waits > self.limit
