"""The gain ratio: how many steps on small batches one step on a large batch is worth.

A large batch consists of S batches of the base size. The gradient of a base batch has an expected
value, whose squared norm is μ². The noise of this gradient has the expected squared norm σ² (the
trace of its covariance):

    r = (σ² + μ²) / (σ²/S + μ²)          1 if all gradients agree, S if all are noise

    σ²_t = S/(C-1) · ( (1/C) Σ‖g_i‖² - ‖ḡ‖² )        from C measured gradients and their mean ḡ
    μ²_t = ‖ḡ‖² - σ²_t / S

Usually C = S. If each of the C gradients comes from S/C base batches, the squared norm of its noise
is only σ² C/S. The factor S/(C-1) takes this into account, so for any S and C, σ² belongs to one
base batch.

Source: Johnson et al., "AdaScale SGD: A User-Friendly Algorithm for Distributed Training", ICML
2020 (arXiv 2007.05105), section 3.4 and appendix B.
"""

import collections
from collections.abc import Sequence

import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation.sparse import coalesced

# The smallest σ². Below this value, differences of squared norms are rounding errors. This limit
# also keeps r finite if all gradients are zero.
LEAST_VARIANCE = 1e-6

# Gradients of up to this many elements are concatenated and squared together.
SMALL = 2**16


def estimates(
    mean_square: tf.Tensor, square_of_mean: tf.Tensor, count: int, scale: tf.Tensor | float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Estimate σ² and μ² from the gradients of one step.

    Args:
        mean_square: (1/C) Σ‖g_i‖², float64 scalar.
        square_of_mean: ‖ḡ‖², float64 scalar.
        count: int, C, 2 or more.
        scale: float or float64 scalar, S, 1 or more.

    Returns:
        σ²_t, at least 1e-6, and μ²_t, at least 0.

    Example:
        Two orthogonal gradients of length 1: (1/2)(1 + 1) = 1 and ‖ḡ‖² = 1/2.

        >>> [float(estimate) for estimate in estimates(1.0, 0.5, count=2, scale=2)]
        [1.0, 0.0]
    """
    variance = tf.maximum(scale / (count - 1) * (mean_square - square_of_mean), LEAST_VARIANCE)
    return variance, tf.maximum(square_of_mean - variance / scale, 0.0)


def gain_ratio(variance: tf.Tensor, squared_norm: tf.Tensor, scale: tf.Tensor | float) -> tf.Tensor:
    """Return r = (σ² + μ²) / (σ²/S + μ²), in [1, S]; NaN if σ² or μ² is NaN."""
    ratio = (variance + squared_norm) / (variance / scale + squared_norm)
    return tf.clip_by_value(ratio, tf.ones_like(ratio), tf.cast(scale, ratio.dtype))


def averaging(
    weight: tf.Tensor, smoothing: tf.Tensor | float, debias: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the new weight and the factor with which a sample is added to a moving average.

    The update is ``average += factor · (sample - average)``.

    * With `debias`: an exponentially weighted moving average that starts at 0, divided by the
      weight of its t samples, 1 - θ^t.
    * Without `debias`: the form of the paper's appendix B.3. It is the plain mean while there are
      fewer than 1/(1-θ) samples, then the exponentially weighted moving average.

    Args:
        weight: the weight of the samples so far, float64 scalar, 0 before the first sample.
        smoothing: float or float64 scalar, θ in [0, 1).
        debias: bool, whether to use the first of these two forms.

    Returns:
        The weight including the next sample, and the factor.
    """
    if debias:
        weight = smoothing * weight + (1 - smoothing)
        return weight, (1 - smoothing) / weight
    return weight + 1, tf.maximum(1 / (weight + 1), 1 - smoothing)


def squared_norm(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor:
    """Return Σ‖g‖² over the gradients of all variables, float64 scalar.

    Args:
        gradients: list of floating-point tensors or `tf.IndexedSlices`. Repeated rows of a
            `tf.IndexedSlices` are summed before they are squared.
    """
    small: dict[tf.DType, list[tf.Tensor]] = collections.defaultdict(list)
    large: list[tf.Tensor] = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            _, gradient = coalesced(gradient)
        vector = tf.reshape(gradient, [-1])
        is_small = vector.shape[0] is not None and vector.shape[0] <= SMALL
        (small[vector.dtype] if is_small else large).append(vector)
    vectors = large + [tf.concat(own, axis=0) for own in small.values()]
    return tf.add_n([_square(vector) for vector in vectors])


def _square(vector):
    """Return ‖v‖², float64 scalar.

    All weights depend on this value, so it is computed by `ops.segment_gram`: the compiled op gives
    the same bits on all CPUs.
    """
    segments = tf.stack([0, tf.size(vector, tf.int64)])
    return tf.cast(ops.segment_gram(vector[None], segments)[0, 0, 0], tf.float64)
