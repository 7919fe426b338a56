"""Aggregation: the replicas' gradients become one gradient per variable.

In reading order: `buckets` (variables to flat buffers), `exchange` (who holds what), `rules` (Gram
matrix to coefficients), and `tf_adasum.ops` for the two passes over memory.

Shape legend: S segments (variables), R replicas, n elements of a bucket, W of a shard.
"""

import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation import buckets, rules
from tf_adasum.aggregation.exchange import CollectiveExchange, LocalExchange

__all__ = ["CollectiveExchange", "LocalExchange", "adasum", "aggregate"]


def aggregate(gradients, rule, exchange, bucket_bytes=None):
    """Combines the replicas' gradients, one variable at a time: ``Σ_i c_i g_i``.

    Args:
        gradients: for each replica that is present here (all of them for `LocalExchange`, one for
            `CollectiveExchange`) the list of its gradients: dense tensors or `tf.IndexedSlices`
            (which are densified) of known shape, the same on every replica.
        rule: an `AggregationRule`.
        exchange: the exchange that brings the replicas' buckets together.
        bucket_bytes: size of a bucket; see `buckets.plan`.

    Returns:
        The list of combined gradients, in the shapes and dtypes of the replicas' own.

    Raises:
        ValueError: for gradients that are no floating-point tensors of known shape.
    """
    gradients = [[tf.convert_to_tensor(gradient) for gradient in own] for own in gradients]
    combined = list(gradients[0])
    for bucket in buckets.plan(gradients[0], bucket_bytes):
        plan = exchange.plan(bucket)
        buffers = [bucket.pack(own, plan.size) for own in gradients]
        pieces = plan.scatter(buffers)
        partial_SRR = tf.add_n([ops.segment_gram(*piece) for piece in pieces])
        coefficients_SR = plan.coefficients(rule, plan.all_reduce(partial_SRR))
        shards = [
            ops.segment_weighted_sum(rows_RW, coefficients_SR, segments)
            for rows_RW, segments in pieces
        ]
        for index, gradient in bucket.unpack(plan.gather(shards)):
            combined[index] = gradient
    return combined


def adasum(values):
    """Combines tensors, or equal structures of tensors, with Adasum, here and now.

    ``adasum(a, b) = (1 - a·b / (2‖a‖²)) a + (1 - a·b / (2‖b‖²)) b`` on each tensor, and the tree of
    neighbours for more than two; see `rules.Adasum`. For custom loops, and to study gradients that
    were saved. No communication.

    Args:
        values: list of N >= 1 tensors of one shape and floating-point dtype, or of N structures
            (dicts, lists, tuples) of such tensors.

    Returns:
        One tensor, or one structure, like each of `values`.

    Raises:
        ValueError: if `values` is empty, or the structures, shapes or dtypes differ.

    Example:
        >>> tf_adasum.adasum([tf.constant([1.0, 0.0]), tf.constant([0.0, 2.0])])  # orthogonal
        [1., 2.]
        >>> tf_adasum.adasum([tf.constant([3.0, 4.0])] * 5)  # identical
        [3., 4.]

    Reference:
        Maleki et al., MLSys 2021 (arXiv 2006.02924).
    """
    values = list(values)
    if not values:
        raise ValueError("`values` must hold at least one tensor. Received: values=[]")
    for other in values[1:]:
        try:
            tf.nest.assert_same_structure(values[0], other)
        except TypeError as error:
            raise ValueError(f"All `values` must have the same structure. {error}") from error
    replicas = [[tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(own)] for own in values]
    for replica, own in enumerate(replicas):
        for first, leaf in zip(replicas[0], own, strict=True):
            if leaf.dtype != first.dtype or not leaf.shape.is_compatible_with(first.shape):
                raise ValueError(
                    "All `values` must have the same shapes and dtypes. Received: "
                    f"{first.dtype.name}{list(first.shape)} in values[0], "
                    f"{leaf.dtype.name}{list(leaf.shape)} in values[{replica}]"
                )
    combined = aggregate(replicas, rules.Adasum(), LocalExchange(len(replicas)))
    return tf.nest.pack_sequence_as(values[0], combined)
