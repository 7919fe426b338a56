"""Exchanges results between workers at the start, so that all workers decide the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tf_adasum.cluster.tasks import Cluster

Gather = Callable[[np.ndarray], np.ndarray]

_LONGEST_TEXT = 320  # bytes of a reason


class Talk:
    """This worker's part of the exchange; every worker has to make the same calls.

    Args:
        cluster: the `Cluster`.
        gather: function that takes this worker's int64 array ``[k]`` and returns the arrays of all
            workers, ``[W, k]``.

    Attributes:
        cluster: the `Cluster`.
    """

    def __init__(self, cluster: Cluster, gather: Gather):
        self.cluster, self._gather = cluster, gather

    def tell(self, failure: str, *numbers: int) -> tuple[str, np.ndarray]:
        """Exchange failures and numbers with all workers.

        Args:
            failure: what has failed on this worker; "" if nothing has failed.
            numbers: integers; each worker passes the same number of them.

        Returns:
            A text with what has failed on which workers, the same on all workers; "" if nothing has
            failed. And the numbers of all workers, int64 ``[W, len(numbers)]``.
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

    def _summary(self, texts):
        failed = [rank for rank, text in enumerate(texts) if text]
        if not failed:
            return ""
        said = texts[failed[0]]
        if len(failed) == len(texts) and len(set(texts)) == 1:
            return said
        same = [rank for rank in failed if texts[rank] == said]
        others = [rank for rank in failed if texts[rank] != said]
        more = f"; {self.cluster.named(others)} failed too" if others else ""
        return f"{self.cluster.named(same)}: {said}{more}"
