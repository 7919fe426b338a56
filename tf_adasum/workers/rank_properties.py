"""Properties with the rank of this worker and the number of workers, for users."""

from __future__ import annotations

import abc
import typing

if typing.TYPE_CHECKING:
    from tf_adasum.workers.workers import Workers


class RankProperties:
    """The properties of a strategy for the rank of this worker and the number of workers."""

    @property
    @abc.abstractmethod
    def workers(self) -> Workers:
        """The `Workers`, with the rank of this worker and methods to exchange values."""

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> strategy.rank, strategy.num_workers
            (0, 1)
        """
        return self.workers.rank

    @property
    def num_workers(self) -> int:
        """The number of workers, at least 1. All workers have the same number of replicas."""
        return self.workers.count

    @property
    def is_first_worker(self) -> bool:
        """Whether this worker writes files and prints: True on the chief, or on worker 0."""
        return self.rank == 0
