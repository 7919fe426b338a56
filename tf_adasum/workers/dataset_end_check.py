"""Checks that a distributed dataset ends in the same step on all workers."""

import weakref
from typing import Any

from tf_adasum.workers.workers import Workers

SAME_ROWS = (
    "All workers need the same rows, because each worker takes its part of every batch. Use the "
    "same data on all workers; or, if each worker has its own rows, pass "
    "strategy.distribute_datasets_from_function(lambda context: "
    "dataset.batch(context.get_per_replica_batch_size(batch_size)))."
)


class DatasetEndCheck:
    """Checks that a distributed dataset ends in the same step on all workers.

    Args:
        workers: the strategy's `Workers`.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._same: weakref.WeakSet = weakref.WeakSet()
        # Whether this worker has a batch, in the first step in which some workers have none.
        self._has_batch: bool | None = None

    def require_same_length(self, distributed: Any) -> None:
        """Require that a distributed dataset ends in the same step on all workers.

        Args:
            distributed: `tf.distribute.DistributedDataset`.
        """
        self._same.add(distributed)

    def check_rows(self, rows: int, batches: int) -> None:
        """Check that all workers have arrays of the same number of rows; all workers call this.

        Args:
            rows: the number of rows of this worker's arrays.
            batches: the number of batches of these arrays.

        Raises:
            ValueError: on all workers, if the numbers of rows differ.
        """
        shown = f"{rows} rows ({batches} batches)"
        self._workers.check_same(SAME_ROWS, rows, shown=shown, code="TFA-405")

    def note(self, has_batch: bool) -> bool:
        """Note, within a step, that some replicas have a batch and others have none.

        Args:
            has_batch: whether any replica of this worker has a batch.
        """
        if self._has_batch is None:
            self._has_batch = bool(has_batch)
        return self._has_batch

    def begin(self) -> None:
        """Begin a pass through a dataset."""
        self._has_batch = None

    def check(self, distributed: Any, batches: range) -> None:
        """Check between two steps that the dataset has not ended on some of the workers only.

        All workers call `note` in the same steps. So either all workers exchange values in this
        check, or no worker does.

        Args:
            distributed: the `tf.distribute.DistributedDataset`.
            batches: the possible numbers of batches of a worker whose data ended in the last
                execution (of one step or more).

        Raises:
            ValueError: on all workers; the message gives the number of batches of each worker.
        """
        if self._has_batch is None or distributed not in self._same:
            return
        least, most = batches[0], batches[-1]
        ended = f"{least} batches" if least == most else f"{least} to {most} batches"
        shown = f"more than {least} batches" if self._has_batch else ended
        has_batch, self._has_batch = self._has_batch, None
        self._workers.check_same(SAME_ROWS, has_batch, shown=shown, code="TFA-405")
