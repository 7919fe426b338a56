"""Which of the workers this one is, as users ask for it."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from tf_adasum.workers.workers import Workers


class Place:
    """What a strategy says of this worker's place among the others."""

    workers: Workers

    @property
    def rank(self) -> int:
        """Which of the workers this one is, from 0; 0 where this process trains alone.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> strategy.rank, strategy.num_workers
            (0, 1)
        """
        return self.workers.rank

    @property
    def num_workers(self) -> int:
        """How many workers train together, each with as many replicas: at least 1."""
        return self.workers.count

    @property
    def is_first_worker(self) -> bool:
        """Whether this is the worker that writes files and prints: true on one of them only.

        In a cluster that has a chief this is the chief.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> if strategy.is_first_worker:
            ...     print("This is said once.")
            This is said once.
        """
        return self.rank == 0
