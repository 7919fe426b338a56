"""Weights replicas by their rows, so that a mean over replicas is a mean over all rows.

A replica's gradient g_i is the mean over its n_i rows. On one device, the gradient of the batch is
``Σ n_i g_i / Σ n_i``, which equals the mean over the replicas if all n_i are equal. Otherwise each
gradient is multiplied by ``n_i N / Σ n_i`` before the mean over the N replicas.

If the replicas are in several processes, no replica knows Σ n_i when it sends its gradient. So it
uses an earlier sum, which is right unless the number of rows has changed, and sends n_i with the
gradient. The mean of the n_i then corrects the result.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_adasum.aggregation.buckets import Gradient
from tf_adasum.aggregation.sparse import values_of, with_values

# The number of bits in which a floating-point type represents integers exactly.
_EXACT_BITS = {tf.bfloat16: 8, tf.float16: 11, tf.float32: 24, tf.float64: 53}

MOST_ROWS = 2**31  # of a replica

_MOST_MULTIPLIED = 2**18  # elements


def times(gradients: Sequence[Gradient], factor: tf.Tensor, device: str) -> list[Gradient]:
    """Multiply gradients by a factor. On CPUs, a factor of 1 does not even read large gradients."""
    numbers = [values_of(gradient) for gradient in gradients]
    sizes = [each.shape.num_elements() for each in numbers]
    is_small = None not in sizes and sum(sizes) <= _MOST_MULTIPLIED

    def product() -> list[tf.Tensor]:
        return [_product(each, factor) for each in numbers]

    if "CPU" in device and not is_small:
        factor = tf.convert_to_tensor(factor)
        numbers = tf.cond(tf.equal(factor, 1), lambda: numbers, product)
    else:  # quicker than a condition; and a GPU would wait until the CPU knows the factor
        numbers = product()
    return [with_values(*pair) for pair in zip(gradients, numbers, strict=True)]


def _product(numbers: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    dtype = tf.float32 if numbers.dtype.size == 2 else numbers.dtype
    return tf.cast(tf.cast(numbers, dtype) * tf.cast(factor, dtype), numbers.dtype)


def relative(rows: tf.Tensor, replicas: int, total: tf.Tensor) -> tf.Tensor:
    """Return ``n_i N / Σ n_i``, float64."""
    return tf.math.divide_no_nan(tf.cast(rows, tf.float64) * replicas, tf.cast(total, tf.float64))


class SentRows:
    """Sends the number of a replica's rows with its gradients, and corrects the result.

    Used by one replica, in one reduction.

    Args:
        rows: n_i, an integer scalar.
        replicas: N.
        last_total: variable of this replica, float64: Σ n_i if it was equal in the last step and
            the step before it, otherwise 0.
        all_reduce: function that sums a tensor over the replicas. It is only called in a step that
            finds 0 in `last_total`.
        device: the replica's device.
    """

    def __init__(
        self,
        rows: tf.Tensor,
        replicas: int,
        last_total: tf.Variable,
        all_reduce: Callable[[tf.Tensor], tf.Tensor],
        device: str,
    ):
        self._rows = tf.cast(rows, tf.float64)
        self._replicas, self._device = replicas, device
        self._variable = last_total
        known = tf.convert_to_tensor(last_total)
        self._assumed = tf.cond(known > 0, lambda: known, lambda: all_reduce(self._rows))

    def added(self, gradients: Sequence[Gradient], wire_dtype: tf.DType | None) -> list[Gradient]:
        """Return the gradients to combine: the weighted gradients, and the digits of n_i."""
        factor = relative(self._rows, self._replicas, self._assumed)
        dense = [each.dtype for each in gradients if not isinstance(each, tf.IndexedSlices)]
        # The dtype of the last gradient, so that n_i is in the bucket that is sent first.
        dtype = dense[-1] if dense else tf.float32
        narrowest = wire_dtype if wire_dtype and wire_dtype.size < dtype.size else dtype
        base = _base(narrowest, self._replicas)
        self._powers = float(base) ** np.arange(np.ceil(np.log(MOST_ROWS) / np.log(base)))
        digits = self._rows // self._powers % base
        return [*times(gradients, factor, self._device), tf.cast(digits, dtype)]

    def corrected(self, combined: Sequence[Gradient]) -> list[Gradient]:
        """Return the combined gradients, without the digits."""
        *gradients, digits = combined
        sums = tf.round(tf.cast(digits, tf.float64) * self._replicas)
        total = tf.reduce_sum(sums * self._powers)
        is_same = tf.equal(total, self._assumed)
        self._variable.assign(tf.where(is_same, total, 0))
        return times(gradients, tf.math.divide_no_nan(self._assumed, total), self._device)


def _base(dtype: tf.DType, replicas: int) -> int:
    """Return a base in which means of digits over the replicas can be rounded to `dtype`.

    The sum of N digits is at most 2^(bits - 2). So N times the rounded mean is wrong by less than
    1/2, even if it was rounded twice.
    """
    return 1 + max(1, 2 ** (_EXACT_BITS[dtype] - 2) // replicas)
