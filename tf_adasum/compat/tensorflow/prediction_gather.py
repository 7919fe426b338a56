"""Gathers the rows of all replicas over the transport of gradients, for `predict`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def can_be_gathered(by_value: Sequence[Sequence[Any]]) -> bool:
    """Return whether all values are dense tensors of numbers ``[rows, ...]``."""
    return all(
        isinstance(own, tf.Tensor)
        and bool(own.shape.rank)
        and (own.dtype.is_floating or own.dtype.is_integer or own.dtype.is_bool)
        for each in by_value
        for own in each
    )


def gather_predictions(group: Any, by_value: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Concatenate the rows of all replicas, for each value.

    Shape letters: W workers, V values, L local replicas.

    Args:
        group: the `CollectiveGroup` of the workers.
        by_value: for each value its tensors ``[rows, ...]`` on the local replicas. Only the number
            of rows may differ between replicas.

    Returns:
        For each value the rows of all replicas: first those of every worker's first replica, in the
        order of the workers, then those of the second, and so on, as Keras orders them.
    """
    counts = tf.stack([[tf.shape(own, tf.int64)[0] for own in each] for each in by_value])
    counts_WVL = group.all_gather(counts)
    joined = []
    for number, each in enumerate(by_value):
        counts_WL = counts_WVL[:, number]
        most = tf.reduce_max(counts_WL)
        padded = [
            tf.pad(own, [[0, most - count], *[[0, 0]] * (own.shape.rank - 1)])
            for own, count in zip(each, tf.unstack(counts[number]), strict=True)
        ]
        rows_WL = group.all_gather(tf.stack(padded))
        parts = [
            rows_WL[worker, local, : counts_WL[worker, local]]
            for local in range(len(each))
            for worker in range(group.size)
        ]
        joined.append(tf.concat(parts, axis=0))
    return joined
