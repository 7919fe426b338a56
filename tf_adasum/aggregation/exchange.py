"""The exchange: who owns what before and after.

Two forms with the same four methods. `LocalExchange`: every replica's buffer is in this process, so
nothing is exchanged. `CollectiveExchange`: one replica among R, the others elsewhere; radix plan
``[R]``, that is one all-to-all, one tiny all-reduce, one all-gather. With R = 3:

                    replica 0     replica 1     replica 2
    before          a0 a1 a2      b0 b1 b2      c0 c1 c2      each its own bucket, 3 shards
    scatter         a0            a1            a2
                    b0            b1            b2            each one shard of every bucket
                    c0            c1            c2
    all_reduce      G             G             G             Σ of the shards' Gram matrices
    (weighted sum)  s0            s1            s2
    gather          s0 s1 s2      s0 s1 s2      s0 s1 s2      the combined bucket

Every shard is combined on exactly one replica and then copied: all replicas end with the same bits.
Bulk bytes sent per replica are ``2 n (R-1)/R`` elements, those of a ring all-reduce.

Shape legend: S segments, R replicas, n elements of a bucket, W = ceil(n / R) elements of a shard.
"""

import numpy as np
import tensorflow as tf


class LocalExchange:
    """All replicas' buckets are at hand.

    Args:
        replicas: R, their number.
    """

    def __init__(self, replicas):
        self.replicas = replicas

    def scatter(self, buffers, segments):
        """Stacks the R buffers ``[n]``: returns rows ``[R, n]`` and their segments."""
        return tf.stack(buffers), segments

    def all_reduce(self, gram):
        """Returns `gram`: it is complete already."""
        return gram

    def coefficients(self, rule, gram):
        """Returns the coefficients of the rows: float64 ``[S, R]``."""
        return rule.coefficients(gram)

    def gather(self, shard, size):
        """Returns `shard`: it is the whole bucket already."""
        del size
        return shard


class CollectiveExchange:
    """This replica's part in an exchange with the plan ``[R]``.

    Args:
        collectives: this replica's `all_to_all`, `all_reduce` and `all_gather`.
        replica_of_rank: for each rank in the collective group, the replica at that rank.
            TensorFlow sorts a group by device *names* ("task:10" before "task:2") and GPUs by their
            links, so that ranks are not replica ids in general.
        replica: this replica's id.
    """

    def __init__(self, collectives, replica_of_rank, replica):
        self._collectives = collectives
        self._replica_of_rank = np.asarray(replica_of_rank)
        self._rank_of_replica = np.argsort(self._replica_of_rank)
        self._rank = int(self._rank_of_replica[replica])
        self.replicas = len(self._replica_of_rank)

    def scatter(self, buffers, segments):
        """Sends each rank its shard of the one buffer ``[n]`` given, receives its own of all.

        Returns:
            Rows ``[R, W]`` in the order of the ranks, and the segments of this shard. The last
            shard's padding belongs to the last segment: zeros change no inner product.
        """
        (buffer,) = buffers
        width = -(-int(segments[-1]) // self.replicas)
        padding = width * self.replicas - int(segments[-1])
        shards_RW = tf.reshape(tf.pad(buffer, [[0, padding]]), [self.replicas, width])
        rows_RW = tf.ensure_shape(self._collectives.all_to_all(shards_RW), shards_RW.shape)
        return rows_RW, shard_segments(segments, self._rank * width, width)

    def all_reduce(self, gram):
        """Adds up the shards' Gram matrices ``[S, R, R]``, of which the upper half travels."""
        rows, columns = np.triu_indices(self.replicas)
        pair_of = np.zeros([self.replicas, self.replicas], np.int32)
        pair_of[rows, columns] = pair_of[columns, rows] = np.arange(len(rows))
        flat = tf.reshape(gram, [-1, self.replicas**2])
        halves = tf.gather(flat, rows * self.replicas + columns, axis=1)
        summed = tf.ensure_shape(self._collectives.all_reduce(halves), halves.shape)
        return tf.reshape(tf.gather(summed, pair_of.ravel(), axis=1), tf.shape(gram))

    def coefficients(self, rule, gram):
        """Returns the coefficients of the rows; the rule sees the replicas in their own order."""
        order = self._rank_of_replica
        gram_in_replica_order = tf.gather(tf.gather(gram, order, axis=1), order, axis=2)
        gram_in_replica_order.set_shape([None, self.replicas, self.replicas])
        coefficients = rule.coefficients(gram_in_replica_order)
        return tf.gather(coefficients, self._replica_of_rank, axis=1)

    def gather(self, shard, size):
        """Joins the ranks' combined shards ``[W]`` to the bucket ``[size]``."""
        shards_RW = self._collectives.all_gather(shard[None, :])
        return tf.ensure_shape(tf.reshape(shards_RW, [-1])[:size], [size])


def shard_segments(segments, start, width):
    """Cuts a segment table to ``start : start + width``, the padding going to the last segment.

    Example:
        >>> shard_segments(np.array([0, 12, 16, 23]), 8, 8)
        [0, 4, 8, 8]
        >>> shard_segments(np.array([0, 12, 16, 23]), 16, 8)
        [0, 0, 0, 8]
    """
    cut = np.clip(segments - start, 0, width)
    cut[-1] = width
    return cut
