"""The three operations in stock TensorFlow, with the contract of the compiled op.

They run wherever TensorFlow runs: on a CPU without the compiled op, on GPUs, and under XLA if the
segments are known when the graph is built. All sums are computed in float64.

Results differ from the compiled op only in the last bits, with one exception: on a CPU,
TensorFlow's threads read subnormal numbers as zero. These are bfloat16 and float32 numbers below
1.18e-38, and float64 numbers below 2.2e-308.

The arguments are the same as in `tf_adasum.ops`, already converted to tensors. This module makes
the checks that need the values of the arguments at run time.

Shape letters: S segments, R rows (replicas), N elements in a row.
"""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

# A squared norm below this value counts as zero: the combination of 0 and b is b.
ZERO_NORM = float(np.sqrt(np.finfo(np.float64).tiny))

# Restores |a·b| <= ‖a‖‖b‖ after rounding. If a = b, nothing changes, because a·b is exactly ‖a‖².
ROUNDING_SLACK = 1 + 4 * float(np.finfo(np.float64).eps)


def segment_gram(rows_RN: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
    """Compute the inner products of all rows: `gram[s, i, j] = <rows[i][s], rows[j][s]>`.

    The operation needs temporary memory for a float64 copy of the largest segment, for all rows.

    Args:
        rows_RN: [R, N], a floating type.
        segments: [S + 1], int64 offsets.

    Returns:
        [S, R, R], float64, symmetric.

    Raises:
        tf.errors.InvalidArgumentError: If `segments` are not non-decreasing offsets from 0 to N.
    """
    rows_RN = _with_rows(rows_RN)
    segments = _checked(segments, tf.shape(rows_RN, tf.int64)[1])
    row_count = tf.shape(rows_RN)[0]
    upper = tf.range(row_count)[:, tf.newaxis] <= tf.range(row_count)[tf.newaxis, :]

    def gram_between(begin: Any, end: Any) -> tf.Tensor:
        segment = tf.cast(rows_RN[:, begin:end], tf.float64)
        gram_RR = tf.linalg.matmul(segment, segment, transpose_b=True)
        # A matrix product may round [i, j] and [j, i] differently, so only one of them is kept.
        return tf.where(upper, gram_RR, tf.transpose(gram_RR))

    rank, offsets = rows_RN.shape[0], tf.get_static_value(segments)
    if offsets is not None and offsets.size > 1:
        # The bounds of the slices are constants, because XLA cannot compile slices otherwise.
        return tf.stack([gram_between(b, e) for b, e in itertools.pairwise(offsets.tolist())])
    return tf.map_fn(
        lambda limits: gram_between(limits[0], limits[1]),
        tf.stack([segments[:-1], segments[1:]], axis=1),
        fn_output_signature=tf.TensorSpec([rank, rank], tf.float64),
    )


def segment_weighted_sum(
    rows_RN: tf.Tensor, coefficients_SR: tf.Tensor, segments: tf.Tensor
) -> tf.Tensor:
    """Combine the rows: `combined[s] = Σ_i coefficients[s, i] · rows[i][s]`.

    Args:
        rows_RN: [R, N], a floating type.
        coefficients_SR: [S, R], float64.
        segments: [S + 1], int64 offsets.

    Returns:
        [N], the dtype of `rows_RN`.

    Raises:
        tf.errors.InvalidArgumentError: If `segments` are not non-decreasing offsets from 0 to N, or
            `coefficients_SR` has another shape.
    """
    rows_RN = _with_rows(rows_RN)
    row_count, element_count = tf.unstack(tf.shape(rows_RN, tf.int64))
    segments = _checked(segments, element_count)
    shape_SR = tf.stack([tf.size(segments, tf.int64) - 1, row_count])
    expected_shape = tf.debugging.assert_equal(
        tf.shape(coefficients_SR, tf.int64),
        shape_SR,
        "coefficients: expected one for each segment and row, [S, R]",
    )
    with tf.control_dependencies([expected_shape]):
        coefficients_RS = tf.transpose(coefficients_SR)
    # The index of an element's segment is the number of segments that end at or before the element.
    segment_of_N = tf.searchsorted(segments[1:], tf.range(element_count), side="right")

    def term(i: Any) -> tf.Tensor:
        return tf.gather(coefficients_RS[i], segment_of_N) * tf.cast(rows_RN[i], tf.float64)

    _, combined_N = tf.while_loop(
        lambda i, _: i < row_count,
        lambda i, sum_N: (i + 1, sum_N + term(i)),
        (tf.constant(1, tf.int64), term(0)),
    )
    return tf.cast(combined_N, rows_RN.dtype)


def pairwise_combine(a: tf.Tensor, b: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
    """Return `(1 - a·b / (2‖a‖²))·a + (1 - a·b / (2‖b‖²))·b` per segment: Adasum of two tensors.

    Args:
        a: Any shape, a floating type.
        b: The shape and dtype of `a`.
        segments: [S + 1], int64 offsets into the flattened tensors.

    Returns:
        The shape and dtype of `a`.

    Raises:
        tf.errors.InvalidArgumentError: If the shapes differ, or `segments` are not non-decreasing
            offsets from 0 to the number of elements.
    """
    equal_shapes = tf.debugging.assert_equal(tf.shape(a), tf.shape(b), "b: expected the shape of a")
    with tf.control_dependencies([equal_shapes]):
        pair_2N = tf.stack([tf.reshape(a, [-1]), tf.reshape(b, [-1])])
    gram_S22 = segment_gram(pair_2N, segments)
    norms_S2 = tf.linalg.diag_part(gram_S22)
    # A NaN or Inf in a segment of either vector makes the segment of the result NaN, even if the
    # other vector is zero.
    is_finite_S1 = tf.reduce_all(tf.math.is_finite(norms_S2), axis=1, keepdims=True)
    coefficients_S2 = pair_coefficients(norms_S2, gram_S22[:, 0, 1])
    coefficients_S2 = tf.where(is_finite_S1, coefficients_S2, tf.constant(np.nan, tf.float64))
    combined = tf.reshape(segment_weighted_sum(pair_2N, coefficients_S2, segments), tf.shape(a))
    combined.set_shape(a.shape.merge_with(b.shape))
    return combined


def pair_coefficients(norms_P2: tf.Tensor, inner_P: tf.Tensor) -> tf.Tensor:
    """Return `1 - p·q / (2‖p‖²)` and `1 - p·q / (2‖q‖²)` for pairs of vectors p and q.

    Args:
        norms_P2: [..., 2], float64; `‖p‖²` and `‖q‖²`.
        inner_P: [...], float64; `p·q`.

    Returns:
        [..., 2], float64.
    """
    # sqrt(pp)·sqrt(pp) can be less than pp, but adasum(p, p) has to be p to the last bit.
    bound_P = tf.reduce_prod(tf.sqrt(norms_P2), axis=-1) * ROUNDING_SLACK
    inner_P = tf.clip_by_value(inner_P, -bound_P, bound_P)
    is_zero_P2 = norms_P2 < ZERO_NORM  # adasum(0, b) = b
    one = tf.ones_like(norms_P2)
    parallel_P2 = inner_P[..., tf.newaxis] / tf.where(is_zero_P2, one, norms_P2)
    return tf.where(is_zero_P2, one, 1 - 0.5 * parallel_P2)


def _with_rows(rows_RN: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(rows_RN)
    has_rows = tf.debugging.assert_equal(
        (tf.size(shape) == 2) & (shape[:1] >= 1), [True], "rows: expected the shape [R, N], R >= 1"
    )
    with tf.control_dependencies([has_rows]):
        return tf.ensure_shape(rows_RN, [None, None])


def _checked(segments: tf.Tensor, element_count: tf.Tensor) -> tf.Tensor:
    """Return `segments`; check that they are non-decreasing offsets from 0 to `element_count`."""
    segments = tf.ensure_shape(segments, [None])
    begins_and_ends = tf.concat([segments[:1] == 0, segments[-1:] == element_count], axis=0)
    is_valid = tf.reduce_all(begins_and_ends) & tf.reduce_all(segments[1:] >= segments[:-1])
    expected = "segments: expected non-decreasing offsets from 0 to the number of elements"
    check = tf.debugging.Assert(
        is_valid & (tf.size(segments) > 0), [expected, element_count, "received", segments]
    )
    static = tf.get_static_value(segments)
    with tf.control_dependencies([check]):
        # A constant stays a constant, because its values decide how the graph is built.
        return segments if static is not None else tf.identity(segments)
