"""Groups: some of the replicas, and the collectives among them, in the replicas' order.

TensorFlow numbers the ranks of a collective group by device *names* ("task:10" before "task:2") and
GPUs by their links. Everything above this file counts members in the order of the replicas.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# Up to so many bytes of all members together, a sum is gathered: where latency is all, the R - 1
# rounds in which everybody gets everything take less time than the 2 (R - 1) of a ring.
GATHERED_SUM_BYTES = 2**20


class Collectives(Protocol):
    """The collectives of one replica in a group, which count its members in ranks."""

    def all_to_all(self, shards: tf.Tensor) -> tf.Tensor:
        """Send row i of ``[R, W]`` to rank i; return ``[R, W]``, row i from rank i."""

    def all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of the members' values, the same bits on each."""

    def all_gather(self, value: tf.Tensor) -> tf.Tensor:
        """Concatenate the members' values along the first axis, in the order of the ranks."""


class FusedCollectives(Protocol):
    """What some transports can do with a bucket's gradients where they are, without packing them.

    Arguments are the same on all members but for the values: `segments` says where in the bucket
    each gradient begins, `width` how many elements of it make a piece.
    """

    def scatter_gram(
        self,
        gradients: Sequence[tf.Tensor],
        segments: np.ndarray,
        width: int,
        takes_products: bool,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Send every member its shards; return the Gram matrices of the own ones, and these."""

    def combine_gather(
        self,
        gradients: Sequence[tf.Tensor],
        received: tf.Tensor,
        coefficients_SR: tf.Tensor,
        segments: np.ndarray,
        width: int,
    ) -> list[tf.Tensor]:
        """Combine the own shards, and return the combined gradients of all members' shards."""


class CollectiveGroup:
    """R replicas, of which this process speaks for one.

    Args:
        collectives: its `Collectives`.
        member_of_rank: for each rank the member at that rank; members are numbered in the order of
            their replica ids.
        member: this replica's number.
        fused: their `FusedCollectives`. Defaults to `None`: buckets are packed.
    """

    def __init__(
        self,
        collectives: Collectives,
        member_of_rank: npt.ArrayLike,
        member: int,
        fused: FusedCollectives | None = None,
    ):
        self._member_of_rank = np.asarray(member_of_rank)
        self.size = len(self._member_of_rank)
        self.member, self.fused = member, fused
        self._collectives = collectives
        self._rank_of_member = np.argsort(self._member_of_rank)

    def all_to_all(self, shards: tf.Tensor) -> tf.Tensor:
        """Send row i of ``[R, W]`` to member i; return ``[R, W]``, row i from member i."""
        received = self._collectives.all_to_all(_ordered(shards, self._member_of_rank))
        return tf.ensure_shape(_ordered(received, self._rank_of_member), shards.shape)

    def all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of the members' values, the same bits on each."""
        elements = value.shape.num_elements()
        if elements is not None and self.size * elements * value.dtype.size <= GATHERED_SUM_BYTES:
            summed = tf.reduce_sum(self._collectives.all_gather(value[None]), axis=0)
        else:
            summed = self._collectives.all_reduce(value)
        return tf.ensure_shape(summed, value.shape)

    def all_gather(self, value: tf.Tensor) -> tf.Tensor:
        """Return the members' values, which have one shape, as ``[R, *shape]``."""
        gathered = self._collectives.all_gather(value[None])
        return tf.ensure_shape(_ordered(gathered, self._rank_of_member), [self.size, *value.shape])


class LocalGroup:
    """All replicas are in this process: a "value" is the list of all of theirs."""

    def all_gather(self, values: list[tf.Tensor]) -> tf.Tensor:
        """Return the values as ``[R, *shape]``."""
        return tf.stack(values)


class RowsGroup:
    """All replicas' values are rows of one tensor already."""

    def all_gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the rows."""
        return rows


def _ordered(rows: tf.Tensor, order: np.ndarray) -> tf.Tensor:
    """Return ``rows[order]``, without a copy where the order is that already."""
    return rows if (order == np.arange(len(order))).all() else tf.gather(rows, order)
