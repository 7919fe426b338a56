"""Groups of replicas, and the collectives among them, in the order of the replicas.

TensorFlow assigns the ranks in a collective group by device *names* ("task:10" before "task:2"),
and for GPUs by their links. So `CollectiveGroup` converts between these ranks and the numbers of
the members, which follow the order of the replicas.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# If the values of all members have at most this many bytes, an all-gather is used for their sum.
# Latency dominates for few bytes, and an all-gather takes R - 1 rounds; a ring takes 2 (R - 1).
GATHERED_SUM_BYTES = 2**20

# TensorFlow's CollectiveAllToAllV2 names its buffers by source and destination rank without a
# separator, so the ranks (1, 11) and (11, 1) of one process collide (observed with TensorFlow
# 2.21). Up to eleven consecutive ranks, which those of a process are, do not collide.
MOST_NEIGHBOURS = 11


class Collectives(Protocol):
    """The collectives of one replica in a group, whose members are numbered by their ranks."""

    def all_to_all(self, shards: tf.Tensor) -> tf.Tensor:
        """Send row i of ``[R, W]`` to rank i; return ``[R, W]``, row i from rank i."""

    def all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of the members' values, with the same bits on each member."""

    def all_gather(self, value: tf.Tensor) -> tf.Tensor:
        """Concatenate the members' values along the first axis, in the order of the ranks."""


class CollectiveGroup:
    """A group of R replicas, for use by one of these replicas.

    Args:
        collectives: the `Collectives` of this replica.
        member_of_rank: for each rank, the number of the member. Members are numbered in the order
            of their replica ids.
        member: this replica's number in the group.
        fused: collectives that send the gradients of a bucket without packing them, which only
            `transport.collectives.UcxCollectives` does. Defaults to `None`: buckets are packed.
        sends_all: whether every member receives the rows for all members, because a process has
            more than `MOST_NEIGHBOURS` of them. Defaults to `False`.
    """

    def __init__(
        self,
        collectives: Collectives,
        member_of_rank: npt.ArrayLike,
        member: int,
        fused: Any = None,
        sends_all: bool = False,
    ):
        self._member_of_rank = np.asarray(member_of_rank)
        self.size = len(self._member_of_rank)
        self.member, self.fused = member, fused
        self._sends_all = sends_all
        self._collectives = collectives
        self._rank_of_member = np.argsort(self._member_of_rank)

    def all_to_all(self, shards: tf.Tensor) -> tf.Tensor:
        """Send row i of ``[R, W]`` to member i; return ``[R, W]``, row i from member i."""
        if self._sends_all:
            return self.all_gather(shards)[:, self.member]
        received = self._collectives.all_to_all(_ordered(shards, self._member_of_rank))
        return tf.ensure_shape(_ordered(received, self._rank_of_member), shards.shape)

    def all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of the members' values, with the same bits on each member."""
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


def _ordered(rows: tf.Tensor, order: np.ndarray) -> tf.Tensor:
    """Return ``rows[order]``, without a copy if the rows are already in this order."""
    return rows if (order == np.arange(len(order))).all() else tf.gather(rows, order)
