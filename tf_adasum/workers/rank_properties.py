"""Properties with the rank of this worker and the number of workers, for users."""

from tf_adasum.compat.base_strategy import Workers


class RankProperties:
    """The properties of a strategy for the rank of this worker and the number of workers."""

    _workers: Workers

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> strategy.rank, strategy.num_workers
            (0, 1)
        """
        return self._workers.rank

    @property
    def num_workers(self) -> int:
        """The number of workers, at least 1. All workers have the same number of replicas."""
        return self._workers.count

    @property
    def is_first_worker(self) -> bool:
        """Whether this worker writes files and prints: True on the chief, or on worker 0."""
        return self.rank == 0
