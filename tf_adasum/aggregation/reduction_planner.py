"""A reduction planner decides how each bucket, and each sparse gradient, is combined.

It makes a `BucketPlan` for a bucket. The plan defines how the bucket is cut into pieces,
and the levels (see `levels`) on which the pieces are combined. There are three cases:

* `LocalReductionPlanner`: every replica's gradients are in this process, and nothing is exchanged.
* `CollectiveReductionPlanner`, for a small bucket: every replica receives and combines the whole
  bucket. More bytes are sent, but one collective usually takes less time than three.
* `CollectiveReductionPlanner`, for every other bucket: the radix plan. On each level, the vectors
  of a group are cut into shards, every member combines one shard, and the combined shards are cut
  again on the next level. All-gathers then join the shards, from the last level to the first. If a
  plan has one level, some transports need no packed vectors, see `fused`.

An example is the radix plan ``[3, 2]`` on the six replicas 0 to 5. A *column* is a group that
combines its vectors:

    level 1    columns (0 1 2) (3 4 5)          each combines three gradients
    level 2    columns (0 3) (1 4) (2 5)        each combines a third of two combinations

If the rule needs the Gram matrix of all replicas, or of variables in several buckets, the plan is
one level for all replicas, ``[N]``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation import buckets
from tf_adasum.aggregation.buckets import Bucket
from tf_adasum.aggregation.fused import FusedReduceScatterLevel
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.levels import AllGatherLevel, Level, ReduceScatterLevel, shard_segments
from tf_adasum.aggregation.scheme import Scheme

Slices = tuple[tf.Tensor, tf.Tensor]  # indices [K], all different, and rows [K, d]


class BucketPlan:
    """Describes how one bucket is combined.

    Args:
        bucket: a `buckets.Bucket`.
        levels: the levels, in order.
        pieces: the number of pieces into which the bucket is cut. The Gram matrices are summed over
            the pieces. Defaults to `1`.
        multiple: a piece is padded until its number of elements is a multiple of this number.
            Defaults to `1`.
        wire_dtype: dtype in which the vectors are sent and combined. Defaults to the dtype of the
            gradients.
    """

    def __init__(
        self,
        bucket: Bucket,
        levels: Sequence[Level],
        pieces: int = 1,
        multiple: int = 1,
        wire_dtype: tf.DType | None = None,
    ):
        self.indices = bucket.indices
        self.levels = levels
        self._bucket = bucket
        self._dtype = wire_dtype or bucket.dtype
        self._width = buckets.piece_width(bucket, pieces, multiple)
        self._starts = range(0, pieces * self._width, self._width)

    def split(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tuple[Any, np.ndarray]]:
        """Return the pieces of this replica's gradients, each as a vector and its segments.

        If `gradients` has several lists, a piece is a matrix with a row for each list.
        """
        length = len(self._starts) * self._width
        buffers = [tf.cast(self._bucket.pack(own, length), self._dtype) for own in gradients]
        pieces = []
        for start in self._starts:
            parts = [tf.slice(buffer, [start], [self._width]) for buffer in buffers]
            vector = parts[0] if len(parts) == 1 else tf.stack(parts)
            pieces.append((vector, shard_segments(self._bucket.segments, start, self._width)))
        return pieces

    def join(self, pieces: Sequence[tf.Tensor]) -> list[tuple[int, tf.Tensor]]:
        """Return ``(index, gradient)`` for each gradient of the combined pieces."""
        whole = tf.ensure_shape(tf.concat(pieces, axis=0), [len(self._starts) * self._width])
        return self._bucket.unpack(tf.cast(whole, self._bucket.dtype))


class LocalPlan(BucketPlan):
    """A plan for replicas that are all in this process. Nothing is split."""

    def split(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tuple[Any, np.ndarray]]:
        """Return one piece: the list of all replicas' vectors, and their segments."""
        return [([self._bucket.pack(own) for own in gradients], self._bucket.segments)]


class PairwisePlan(LocalPlan):
    """Applies Adasum to pairs, pairs of pairs, …, with the op that combines a pair in two passes.

    A pair is combined from the vectors themselves, so no Gram matrices are needed.
    """

    def split(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tuple[Any, np.ndarray]]:
        """Combine all vectors; return the combination as one piece, with its segments."""
        ((vectors, segments),) = super().split(gradients)
        while len(vectors) > 1:
            vectors = [
                ops.pairwise_combine(a, b, segments)
                for a, b in zip(vectors[0::2], vectors[1::2], strict=True)
            ]
        return [(vectors[0], segments)]


class FusedPlan(BucketPlan):
    """A plan without packing, see `fused`. The transport cuts the bucket into pieces."""

    def split(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tuple[Any, np.ndarray]]:
        """Return one piece: the list of this replica's gradients, and their segments."""
        own = [tf.cast(gradients[0][index], self._dtype) for index in self.indices]
        return [(own, self._bucket.segments)]

    def join(self, pieces: Sequence[Any]) -> list[tuple[int, tf.Tensor]]:
        """Return ``(index, gradient)`` for each combined gradient."""
        (combined,) = pieces
        whole = [tf.cast(gradient, self._bucket.dtype) for gradient in combined]
        return list(zip(self.indices, whole, strict=True))


class LocalReductionPlanner:
    """Plans the reduction within one process, which has the gradients of all replicas.

    Args:
        scheme: the `Scheme`.
    """

    def __init__(self, scheme: Scheme):
        self.scheme = scheme

    def plan(self, bucket: Bucket, needs_full_gram: bool) -> BucketPlan:
        """Return the plan for a `Bucket`.

        Args:
            bucket: the bucket.
            needs_full_gram: whether the Gram matrix of all replicas is needed, so that neither a
                pairwise plan nor a radix plan of several levels is possible.
        """
        radix_plan = self.scheme.radix_plan or ()
        is_halving = set(radix_plan) == {2} and self.scheme.local_reduction_size == 1
        if is_halving and self.scheme.rule.is_tree_of_pairs and not needs_full_gram:
            return PairwisePlan(bucket, levels=[])
        return LocalPlan(bucket, [AllGatherLevel(self.scheme.single_level_rule, tf.stack)])

    def all_slices(self, slices: Sequence[Sequence[Slices]]) -> list[list[Slices]]:
        """Return, for each sparse variable, the list of all replicas' gradients."""
        return [list(own) for own in zip(*slices, strict=True)]


class CollectiveReductionPlanner:
    """Plans the exchanges of this replica with all other replicas.

    Args:
        scheme: the `Scheme`.
        group_of: function of a stride and a radix. It returns a `CollectiveGroup` of `radix`
            replicas, including this replica. Their numbers differ by multiples of the stride.
        all_gather_threshold_bytes: if a replica, or all replicas of a host that share its link,
            receive at most this many bytes, every replica combines the whole bucket. Must be 0
            unless the same computation gives the same bits on all replicas. Defaults to `0`.
        parts: the number of lists of gradients of each replica, whose rows the rule combines as
            those of so many replicas. Defaults to `1`.
    """

    def __init__(
        self,
        scheme: Scheme,
        group_of: Callable[[int, int], CollectiveGroup],
        all_gather_threshold_bytes: int = 0,
        parts: int = 1,
    ):
        self.scheme = scheme
        self._parts, self._replicas = parts, scheme.replicas // parts
        self._group_of = group_of
        self._all_gather_threshold_bytes = all_gather_threshold_bytes

    @property
    def group(self) -> CollectiveGroup:
        """The group of all replicas."""
        return self._group_of(1, self._replicas)

    def plan(self, bucket: Bucket, needs_full_gram: bool) -> BucketPlan:
        """Return the plan for a `Bucket`, the same on all replicas, as `LocalReductionPlanner`."""
        replicas = self._replicas
        wire_dtype = narrower(bucket.dtype, self.scheme.wire_dtype)
        size = bucket.size * (wire_dtype or bucket.dtype).size
        received = self.scheme.replicas * size * self.scheme.replicas_per_host
        if received <= self._all_gather_threshold_bytes:
            together = AllGatherLevel(self.scheme.single_level_rule, self.group.all_gather)
            return BucketPlan(bucket, [together], wire_dtype=wire_dtype)

        levels: list[Level] = []
        stride = 1
        if needs_full_gram or self.scheme.num_combined == 1 or self._parts > 1:
            radices = [(replicas, self.scheme.single_level_rule)]
        else:
            radices = self.scheme.levels(self.scheme.plan(size, len(bucket.indices)))
        for radix, rule in radices:
            column = self._group_of(stride, radix)
            stride *= radix
            levels.append(ReduceScatterLevel(rule, column, self._group_of(1, stride)))
        pieces = max(1, round(size / buckets.PIECE_BYTES))
        is_cut = pieces > 1 or len(levels) > 1
        multiple = replicas * (buckets.elements_aligned(bucket.dtype) if is_cut else 1)
        if len(levels) == 1 and column.fused is not None and self._parts == 1:
            computes_gram = needs_full_gram or rule.needs_gram
            width = buckets.piece_width(bucket, pieces, multiple)
            fused = FusedReduceScatterLevel(rule, column, width, computes_gram)
            return FusedPlan(bucket, [fused], wire_dtype=wire_dtype)
        return BucketPlan(bucket, levels, pieces, multiple, wire_dtype)

    def all_slices(self, slices: Sequence[Sequence[Slices]]) -> list[list[Slices]]:
        """Return, for each sparse variable, the list of all replicas' gradients.

        Args:
            slices: a list with the slices of each list of gradients of this replica. For each
                variable, they are indices ``[K]`` and values ``[K, d]``: K rows of d elements, with
                any K.
        """
        of_parts = [self._all_slices(own) for own in slices]
        return [
            [part for of_replica in zip(*of_variable, strict=True) for part in of_replica]
            for of_variable in zip(*of_parts, strict=True)
        ]

    def _all_slices(self, own: Sequence[Slices]) -> list[list[Slices]]:
        if not own:
            return []
        counts = tf.stack([tf.size(indices, tf.int64) for indices, _ in own])
        counts_by_replica = self.group.all_gather(counts)  # [N, variables]
        return [
            self._slices_of_all(indices, values, counts_by_replica[:, number])
            for number, (indices, values) in enumerate(own)
        ]

    def _slices_of_all(
        self, indices: tf.Tensor, values: tf.Tensor, counts: tf.Tensor
    ) -> list[Slices]:
        dtype, wire_dtype = values.dtype, narrower(values.dtype, self.scheme.wire_dtype)
        # All replicas send as many rows as the replica with the most rows, and at least one row.
        padding = tf.maximum(tf.reduce_max(counts), 1) - tf.size(indices, tf.int64)
        indices = self.group.all_gather(tf.pad(indices, [[0, padding]]))
        values = tf.pad(tf.cast(values, wire_dtype or dtype), [[0, padding], [0, 0]])
        values = tf.cast(self.group.all_gather(values), dtype)
        return [
            (indices[replica, : counts[replica]], values[replica, : counts[replica]])
            for replica in range(self._replicas)
        ]


ReductionPlanner = LocalReductionPlanner | CollectiveReductionPlanner


def narrower(dtype: tf.DType, wire_dtype: tf.DType | None) -> tf.DType | None:
    """Return the wire dtype if it has fewer bytes than the dtype of the gradients, else None."""
    return wire_dtype if wire_dtype and wire_dtype.size < dtype.size else None
