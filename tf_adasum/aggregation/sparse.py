"""Combine sparse gradients: only the rows of an embedding that a batch used are exchanged.

    replica 0            replica 1            rows over the union of the indices
    index 7: a           index 2: c           index       2   7   9
    index 2: b           index 9: d           replica 0   b   a   0
                                              replica 1   c   0   d

On these rows, the rule works as on dense gradients. Rows that no replica used would add nothing to
any inner product or combination.

Shape legend: R replicas, K rows of a replica, U rows of the union, d elements of a row.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_adasum.aggregation.buckets import Gradient
from tf_adasum.aggregation.levels import AllGatherLevel
from tf_adasum.aggregation.reduction_planner import ReductionPlanner
from tf_adasum.aggregation.rules import AggregationRule


class SparsePlan:
    """Describes how the sparse gradients of one variable are combined: a `BucketPlan` of one level.

    Args:
        index: the position of the gradient in the list of all gradients.
        like: this replica's gradient. The result has its index dtype, row shape and dense shape.
        slices: for each replica, the indices ``[K]``, all different, and the values ``[K, d]``.
        rule: the `AggregationRule` for the Gram matrix of all replicas.
    """

    def __init__(
        self,
        index: int,
        like: tf.IndexedSlices,
        slices: Sequence[tuple[tf.Tensor, tf.Tensor]],
        rule: AggregationRule,
    ):
        self.indices = (index,)
        self.levels = [AllGatherLevel(rule, tf.stack)]
        self._like = like
        self._slices = slices
        self._union = tf.sort(tf.unique(tf.concat([i for i, _ in slices], axis=0))[0])

    def split(self, gradients: Any) -> list[tuple[list[tf.Tensor], tf.Tensor]]:
        """Return one piece with one segment: the list of the replicas' vectors ``[U·d]``."""
        rows, width = tf.size(self._union, tf.int64), self._slices[0][1].shape[1]

        def vector(indices: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
            places = tf.searchsorted(self._union, indices, out_type=tf.int64)[:, None]
            return tf.reshape(tf.scatter_nd(places, values, tf.stack([rows, width])), [-1])

        return [([vector(*own) for own in self._slices], tf.stack([0, rows * width]))]

    def join(self, pieces: Sequence[tf.Tensor]) -> list[tuple[int, tf.IndexedSlices]]:
        """Return the variable's index, and the combined gradient, with the U rows of the union."""
        (combined,) = pieces
        row_shape = self._like.values.shape[1:]
        values = tf.reshape(combined, [-1, *row_shape])
        indices = tf.cast(self._union, self._like.indices.dtype)
        return [(self.indices[0], tf.IndexedSlices(values, indices, self._like.dense_shape))]


class MeanPlan(SparsePlan):
    """The rows of all replicas, joined by `joined` and divided by their number R."""

    def __init__(self, index: int, like: tf.IndexedSlices, slices: Any, rule: AggregationRule):
        self.indices, self.levels = (index,), []
        self._like = like
        self._union, rows = joined(slices)
        self._mean = rows * tf.constant(1 / len(slices), rows.dtype)

    def split(self, gradients: Any) -> list[tuple[tf.Tensor, None]]:
        """Return the rows ``[K, d]`` of all replicas."""
        return [(self._mean, None)]


def plans(
    gradients: Sequence[Sequence[Gradient]], planner: ReductionPlanner, is_mean: bool = False
) -> list[SparsePlan]:
    """Return a `SparsePlan` for each sparse gradient whose rows have elements.

    Args:
        gradients: for each replica in this process, the list of its gradients.
        planner: plans the exchange that gathers the slices of all replicas.
        is_mean: whether the rows are averaged, see `joined`. Defaults to `False`.
    """
    kind, prepared = (MeanPlan, _flat) if is_mean else (SparsePlan, coalesced)
    sparse = [
        index
        for index, gradient in enumerate(gradients[0])
        if isinstance(gradient, tf.IndexedSlices) and math.prod(gradient.values.shape[1:]) > 0
    ]
    own = [[prepared(each[index]) for index in sparse] for each in gradients]
    return [
        kind(index, gradients[0][index], slices, planner.scheme.single_level_rule)
        for index, slices in zip(sparse, planner.all_slices(own), strict=True)
    ]


def joined(slices: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tuple[tf.Tensor, tf.Tensor]:
    """Join the rows of replicas, as they are on one device with the batches of all replicas.

    There, rows with the same index are not added up, and some optimizers, such as Adam, would take
    another step if they were. But some indices do not depend on the batch, such as positions in a
    text. For these, a device has one row for each index. So if all replicas have the same indices,
    each of them once, their rows are added up.

    Args:
        slices: for each replica, the indices ``[K]`` and the rows ``[K, ...]``.

    Returns:
        Indices and rows.
    """
    indices, rows = zip(*slices, strict=True)
    first, *others = indices
    every = tf.concat(indices, axis=0), tf.concat(rows, axis=0)
    if not all(first.shape.is_compatible_with(each.shape) for each in others):
        return every
    are_as_many = tf.reduce_all([tf.size(first) == tf.size(each) for each in others])
    are_same = _and(
        are_as_many, lambda: tf.reduce_all(tf.reshape(every[0], [len(slices), -1]) == first)
    )
    are_added = _and(are_same, lambda: tf.size(tf.unique(first)[0]) == tf.size(first))
    return tf.cond(are_added, lambda: (first, tf.add_n(rows)), lambda: every)


def _and(one: tf.Tensor, other: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.cond(one, other, lambda: tf.constant(False))


def coalesced(slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Sum the rows that have the same index.

    Args:
        slices: `tf.IndexedSlices` with any number of rows. The shape of one row must be known.

    Returns:
        int64 indices ``[K]``, sorted and all different; summed rows ``[K, d]``.

    Example:
        >>> values, indices = tf.constant([[1.0], [2.0], [4.0]]), tf.constant([5, 3, 5])
        >>> unique, summed = coalesced(tf.IndexedSlices(values, indices))
        >>> unique.numpy().tolist(), summed.numpy().tolist()
        ([3, 5], [[2.0], [5.0]])
    """
    indices, values = _flat(slices)
    unique = tf.sort(tf.unique(indices)[0])
    # Repeated indices are summed in float32, because in 16 bits a large sum stops growing.
    summed = tf.math.unsorted_segment_sum(
        tf.cast(values, tf.float32) if values.dtype.size == 2 else values,
        tf.searchsorted(unique, indices, out_type=tf.int64),
        tf.size(unique, tf.int64),
    )
    return unique, tf.cast(summed, values.dtype)


def _flat(slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Return int64 indices ``[K]``, and rows ``[K, d]``."""
    rows = tf.reshape(slices.values, [-1, math.prod(slices.values.shape[1:])])
    return tf.cast(slices.indices, tf.int64), rows


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the numbers of a dense or sparse gradient."""
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return tf.convert_to_tensor(gradient.values if is_sparse else gradient)


def with_values(gradient: Gradient, values: tf.Tensor) -> Gradient:
    """Return a gradient like `gradient`, with other numbers."""
    if not isinstance(gradient, tf.IndexedSlices):
        return values
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
