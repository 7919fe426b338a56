"""The exchange: who owns what before and after.

A plan for one bucket has four steps: `scatter`, `all_reduce`, `coefficients`, `gather`. There are
three. `LocalPlan`: every replica's buffer is in this process, so nothing is exchanged.

`AllToAllPlan`: one replica among R, the others elsewhere; radix plan ``[R]``, that is one
all-to-all, one tiny all-reduce, one all-gather. With R = 3:

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

`AllGatherPlan`: for a small bucket the three rounds cost more than its bytes. There is one round:
every replica gets every bucket and combines all of it, all with the same bits.

    scatter         a b c         a b c         a b c         ``n (R-1)`` elements sent per replica

A large bucket, which is one large variable, goes through the collectives in pieces of some MB:
memory of that size is reused from step to step, larger blocks the kernel has to clear every time.

Shape legend: S segments, R replicas, n elements of a bucket, W of what a replica combines.
"""

import numpy as np
import tensorflow as tf

from tf_adasum.aggregation import buckets

# A bucket goes through the collectives in pieces of about this size.
PIECE_BYTES = 16 * 2**20


class LocalExchange:
    """All replicas' buckets are at hand.

    Args:
        replicas: R, their number.
    """

    def __init__(self, replicas):
        self.replicas = replicas

    def plan(self, bucket):
        """Returns the plan for a `Bucket`."""
        return LocalPlan(bucket)


class LocalPlan:
    """The R buffers are stacked, and W = n."""

    def __init__(self, bucket):
        self.segments = bucket.segments
        self.size = bucket.size

    def scatter(self, buffers):
        """Stacks the R buffers ``[n]``: returns one piece, rows ``[R, n]`` and their segments."""
        return [(tf.stack(buffers), self.segments)]

    def all_reduce(self, gram):
        """Returns `gram`: it is complete already."""
        return gram

    def coefficients(self, rule, gram):
        """Returns the coefficients of the rows: float64 ``[S, R]``."""
        return rule.coefficients(gram)

    def gather(self, shards):
        """Returns the one shard given: it is the whole bucket already."""
        (shard,) = shards
        return shard


class CollectiveExchange:
    """This replica's part in exchanges with all the others.

    Args:
        collectives: this replica's `all_to_all`, `all_reduce` and `all_gather`.
        replica_of_rank: for each rank in the collective group, the replica at that rank.
            TensorFlow sorts a group by device *names* ("task:10" before "task:2") and GPUs by their
            links, so that ranks are not replica ids in general.
        replica: this replica's id.
        gathered_bytes: up to so many bytes of rows, R buckets, a bucket is combined on every
            replica. Only where the same computation gives the same bits everywhere.
    """

    def __init__(self, collectives, replica_of_rank, replica, gathered_bytes=0):
        self.collectives = collectives
        self.replica_of_rank = np.asarray(replica_of_rank)
        self.rank_of_replica = np.argsort(self.replica_of_rank)
        self.rank = int(self.rank_of_replica[replica])
        self.replicas = len(self.replica_of_rank)
        self._gathered_bytes = gathered_bytes

    def plan(self, bucket):
        """Returns the plan for a `Bucket`; it depends on nothing but the bucket."""
        is_small = self.replicas * bucket.size * bucket.dtype.size <= self._gathered_bytes
        return AllGatherPlan(self, bucket) if is_small else AllToAllPlan(self, bucket)


class AllGatherPlan(LocalPlan):
    """Every replica combines the whole bucket, W = n: a `LocalPlan` once it holds the rows."""

    def __init__(self, exchange, bucket):
        super().__init__(bucket)
        self._exchange = exchange

    def scatter(self, buffers):
        """Sends the one buffer ``[n]`` given to all: returns one piece, rows ``[R, n]`` by rank."""
        (buffer,) = buffers
        rows_RW = self._exchange.collectives.all_gather(buffer[None, :])
        return [(tf.ensure_shape(rows_RW, [self._exchange.replicas, self.size]), self.segments)]

    def coefficients(self, rule, gram):
        """Returns the coefficients of the rows; the rule sees the replicas in their own order."""
        order = self._exchange.rank_of_replica
        gram_in_replica_order = tf.gather(tf.gather(gram, order, axis=1), order, axis=2)
        gram_in_replica_order.set_shape([None, len(order), len(order)])
        coefficients = rule.coefficients(gram_in_replica_order)
        return tf.gather(coefficients, self._exchange.replica_of_rank, axis=1)


class AllToAllPlan(AllGatherPlan):
    """Every replica combines one shard of each piece: W = size / pieces / R, the end padded."""

    def __init__(self, exchange, bucket):
        super().__init__(exchange, bucket)
        self._pieces = max(1, round(bucket.size * bucket.dtype.size / PIECE_BYTES))
        alignment = buckets.elements_aligned(bucket.dtype)
        width = -(-bucket.size // (exchange.replicas * self._pieces))
        self._width = -(-width // alignment) * alignment if self._pieces > 1 else width
        self.size = self._width * exchange.replicas * self._pieces

    def scatter(self, buffers):
        """Sends each rank its shards of the one buffer ``[size]`` given, receives its own of all.

        Returns:
            For each piece the rows ``[R, W]`` in the order of the ranks, and the segments of this
            shard. The last shard's padding belongs to the last segment: zeros change no inner
            product.
        """
        (buffer,) = buffers
        replicas, pieces = self._exchange.replicas, []
        for start in range(0, self.size, replicas * self._width):
            piece = tf.slice(buffer, [start], [replicas * self._width])
            shards_RW = tf.reshape(piece, [replicas, self._width])
            rows_RW = self._exchange.collectives.all_to_all(shards_RW)
            own = shard_segments(
                self.segments, start + self._exchange.rank * self._width, self._width
            )
            pieces.append((tf.ensure_shape(rows_RW, shards_RW.shape), own))
        return pieces

    def all_reduce(self, gram):
        """Adds up the shards' Gram matrices ``[S, R, R]``, of which the upper half travels."""
        replicas = self._exchange.replicas
        rows, columns = np.triu_indices(replicas)
        pair_of = np.zeros([replicas, replicas], np.int32)
        pair_of[rows, columns] = pair_of[columns, rows] = np.arange(len(rows))
        flat = tf.reshape(gram, [-1, replicas**2])
        halves = tf.gather(flat, rows * replicas + columns, axis=1)
        summed = tf.ensure_shape(self._exchange.collectives.all_reduce(halves), halves.shape)
        return tf.reshape(tf.gather(summed, pair_of.ravel(), axis=1), tf.shape(gram))

    def gather(self, shards):
        """Joins the ranks' combined shards ``[W]`` of each piece to the bucket ``[size]``."""
        gathered = [self._exchange.collectives.all_gather(shard[None, :]) for shard in shards]
        whole = tf.concat([tf.reshape(shards_RW, [-1]) for shards_RW in gathered], axis=0)
        return tf.ensure_shape(whole, [self.size])


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
