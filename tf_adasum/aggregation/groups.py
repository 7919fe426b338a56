"""Groups: some of the replicas, and the collectives among them, in the replicas' order.

TensorFlow numbers the ranks of a collective group by device *names* ("task:10" before "task:2") and
GPUs by their links. Everything above this file counts members in the order of the replicas.
"""

import numpy as np
import tensorflow as tf


class CollectiveGroup:
    """R replicas, of which this process speaks for one.

    Args:
        collectives: its `all_to_all`, `all_reduce` and `all_gather`, which count in ranks.
        member_of_rank: for each rank the member at that rank; members are numbered in the order of
            their replica ids.
        member: this replica's number.
    """

    def __init__(self, collectives, member_of_rank, member):
        self.size = len(member_of_rank)
        self.member = member
        self._collectives = collectives
        self._member_of_rank = np.asarray(member_of_rank)
        self._rank_of_member = np.argsort(self._member_of_rank)

    def all_to_all(self, shards):
        """Sends row i of ``[R, W]`` to member i; returns ``[R, W]``, row i from member i."""
        received = self._collectives.all_to_all(_ordered(shards, self._member_of_rank))
        return tf.ensure_shape(_ordered(received, self._rank_of_member), shards.shape)

    def all_reduce(self, value):
        """Returns the sum of the members' values, the same bits on each."""
        return tf.ensure_shape(self._collectives.all_reduce(value), value.shape)

    def all_gather(self, value):
        """Returns the members' values, which have one shape, as ``[R, *shape]``."""
        gathered = self._collectives.all_gather(value[None])
        return tf.ensure_shape(_ordered(gathered, self._rank_of_member), [self.size, *value.shape])


class LocalGroup:
    """All replicas are in this process: a "value" is the list of all of theirs."""

    def all_gather(self, values):
        """Returns the values as ``[R, *shape]``."""
        return tf.stack(values)


class RowsGroup:
    """All replicas' values are rows of one tensor already."""

    def all_gather(self, rows):
        """Returns the rows."""
        return rows


def _ordered(rows, order):
    """Returns ``rows[order]``, without a copy where the order is that already."""
    return rows if (order == np.arange(len(order))).all() else tf.gather(rows, order)
