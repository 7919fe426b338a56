"""Levels: the steps in which the vectors of a group are combined.

On a level, a group of R members combines R vectors. A member receives W elements of each vector as
rows ``[R, W]``. If other replicas receive other elements of the vectors, the Gram matrices are
completed by a sum over these replicas. Then each member combines its rows, and all members receive
the combinations ``[W]``.

Shape legend: S segments, R members of the group, W elements that a member combines.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.rules import AggregationRule


class Level(Protocol):
    """The interface of the levels of a plan."""

    rule: AggregationRule

    def scatter(self, vector: Any, segments: Any) -> tuple[Any, Any]:
        """Return the rows ``[R, W]`` that this member combines, and their segments."""

    def gram(self, rows: Any, segments: Any) -> tf.Tensor:
        """Return the Gram matrices ``[S, R, R]`` of the rows that `scatter` returned."""
        return ops.segment_gram(rows, segments)

    def all_reduce_gram(self, gram: tf.Tensor) -> tf.Tensor:
        """Return the Gram matrices of the whole vectors; `gram` covers this member's rows."""
        return gram  # if each member has all rows

    def combine(self, rows: Any, coefficients_SR: tf.Tensor, segments: Any) -> Any:
        """Return the combination ``[W]`` of the rows."""
        return ops.segment_weighted_sum(rows, coefficients_SR, segments)

    def gather(self, combined: Any) -> Any:
        """Return the vector that consists of all members' combinations ``[W]``."""
        return combined  # if each member has it already


class AllGatherLevel(Level):
    """A level of one round, in which every member receives all vectors and combines them.

    Args:
        rule: the `AggregationRule` of this level.
        all_gather: function that returns the vectors of all members as ``[R, …]``: `tf.stack` if
            this process has a list of them, or the collective of a group.

    With R = 3, `n (R-1)` elements are sent per replica:

        before      a             b             c
        scatter     a b c         a b c         a b c
        combined    s             s             s
    """

    def __init__(self, rule: AggregationRule, all_gather: Callable[[Any], tf.Tensor]):
        self.rule = rule
        self._all_gather = all_gather

    def scatter(self, vector: Any, segments: Any) -> tuple[tf.Tensor, Any]:
        """Return the rows, and their segments. A vector may be a matrix of several rows."""
        rows = self._all_gather(vector)
        return (rows if rows.shape.rank == 2 else _as_rows(rows)), segments


class ReduceScatterLevel(Level):
    """A level on which every member combines one shard, and receives the other combined shards.

    Args:
        rule: the `AggregationRule` of this level.
        column: the group whose vectors are combined.
        block: the group of all replicas that hold elements of these vectors. On the first level,
            the block is the column. On the second level, each vector is spread over a column of the
            first level, so the block consists of several such columns.

    With R = 3, `2 n (R-1)/R` elements are sent per replica, as in a ring all-reduce:

        before      a0 a1 a2      b0 b1 b2      c0 c1 c2      a member has 3 shards of its vector
        scatter     a0            a1            a2
                    b0            b1            b2            a member has 1 shard of every vector
                    c0            c1            c2
        complete    G             G             G             Σ of the shards' Gram matrices
        combined    s0            s1            s2
        gather      s0 s1 s2      s0 s1 s2      s0 s1 s2      the combined vector

    Every shard is combined on exactly one replica and then copied, so all replicas have the same
    bits.
    """

    def __init__(self, rule: AggregationRule, column: CollectiveGroup, block: CollectiveGroup):
        self.rule = rule
        self._column = column
        self._block = block

    def scatter(self, vector: Any, segments: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return this member's shard of every vector, and the segments of the shard.

        A vector may be a matrix of several rows, which count as vectors of so many members.
        """
        own_rows = vector.shape[0] if vector.shape.rank == 2 else 1
        shards = tf.reshape(vector, [own_rows, self._column.size, -1])
        width = shards.shape[2]
        # TensorFlow does not copy a single row when it transposes it.
        shards_RW = tf.reshape(tf.transpose(shards, [1, 0, 2]), [self._column.size, -1])
        rows = self._column.all_to_all(shards_RW)
        own = shard_segments(segments, self._column.member * width, width)
        return _as_rows(tf.reshape(rows, [self._column.size, own_rows, width])), own

    def all_reduce_gram(self, gram: tf.Tensor) -> tf.Tensor:
        """Sum the shards' Gram matrices ``[S, R, R]``; only their upper halves are sent."""
        members = gram.shape[-1]
        rows, columns = np.triu_indices(members)
        pair_of = np.zeros([members, members], np.int32)
        pair_of[rows, columns] = pair_of[columns, rows] = np.arange(len(rows))
        flat = tf.reshape(gram, [-1, members**2])
        summed = self._block.all_reduce(tf.gather(flat, rows * members + columns, axis=1))
        return tf.reshape(tf.gather(summed, pair_of.ravel(), axis=1), tf.shape(gram))

    def gather(self, combined: Any) -> Any:
        """Join the members' combined shards ``[W]`` into one vector."""
        return tf.reshape(self._column.all_gather(combined), [-1])


def _as_rows(parts: tf.Tensor) -> tf.Tensor:
    """Return ``[members, rows, W]`` as ``[members · rows, W]``."""
    return tf.reshape(parts, [parts.shape[0] * parts.shape[1], parts.shape[2]])


def shard_segments(segments: np.ndarray, start: int, width: int) -> np.ndarray:
    """Return the segment table of the elements ``start : start + width``, as offsets from `start`.

    The padding of the last shard lies beyond the end of the table. It becomes a part of the last
    segment, which is correct because zeros change no inner product.

    Example:
        >>> shard_segments(np.array([0, 12, 16, 23]), 8, 8)
        array([0, 4, 8, 8])
        >>> shard_segments(np.array([0, 12, 16, 23]), 16, 8)
        array([0, 0, 0, 8])
    """
    cut = np.clip(segments - start, 0, width)
    cut[-1] = width
    return cut
