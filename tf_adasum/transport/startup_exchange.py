"""Exchanges results between workers when they start, so that all make the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tf_adasum.cluster.tasks import Cluster

Gather = Callable[[np.ndarray], np.ndarray]

_LONGEST_TEXT = 320  # bytes of the text of a failure


class StartupExchange:
    """Exchanges results with the other workers; every worker has to make the same calls.

    Args:
        cluster: the `Cluster`.
        gather: function that takes this worker's int64 array ``[k]`` and returns the arrays of all
            workers, ``[workers, k]``.

    Attributes:
        cluster: the `Cluster`.
    """

    def __init__(self, cluster: Cluster, gather: Gather):
        self.cluster, self._gather = cluster, gather

    def gather(self, failure: str, *numbers: int) -> tuple[str, np.ndarray]:
        """Exchange failures and numbers with all workers.

        Args:
            failure: what has failed on this worker; "" if nothing has failed.
            numbers: integers. All workers pass the same number of integers.

        Returns:
            Two values, which are the same on all workers: a text with what has failed on which
            workers ("" if nothing has failed), and the numbers of all workers, int64
            ``[workers, len(numbers)]``.
        """
        text = failure.encode()[:_LONGEST_TEXT].ljust(_LONGEST_TEXT, b"\0")
        words = np.frombuffer(text, np.int64)
        rows = self._gather(np.array([*numbers, *words], np.int64))
        texts = [row[len(numbers) :].tobytes().decode(errors="ignore").rstrip("\0") for row in rows]
        return self._summary(texts), rows[:, : len(numbers)]

    def bytes_of_all(self, own: bytes, lengths: Sequence[int]) -> list[bytes]:
        """Return the bytes of all workers; `lengths` has the number of bytes of each worker."""
        words = -(-int(max(lengths)) // 8)
        rows = self._gather(np.frombuffer(own.ljust(8 * words, b"\0"), np.int64))
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def _summary(self, texts: list[str]) -> str:
        failed = [rank for rank, text in enumerate(texts) if text]
        if not failed:
            return ""
        text = texts[failed[0]]
        return text if {*texts} == {text} else f"{self.cluster.named(failed)}: {text}"
