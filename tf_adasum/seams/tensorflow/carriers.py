"""The dtypes in which TensorFlow's collectives move, or add, values of all other dtypes.

| | TensorFlow 2.21 takes |
| --- | --- |
| broadcast | bool, float16, float32, float64, int32, int64 |
| gather | float16, float32, float64, int32, int64 |
| reduce | bfloat16, float16, float32, float64, int32, int64 |

Moved values keep their bits (float8 keeps its values). Integers are added exactly, modulo their
range.
"""

import tensorflow as tf

# What every collective moves as it is.
MOVED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# Int32 is not used to send others: GPUs keep it in the memory of the host.
_OF_SIZE = {2: tf.float16, 4: tf.float32, 8: tf.int64}
_PARTS = {tf.complex64: tf.float32, tf.complex128: tf.float64}
_ADDED_AS_INT64 = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.uint32)


def to_move(value: tf.Tensor) -> tf.Tensor:
    """Return a tensor that broadcast and gather take, for `moved`; it may have one axis more."""
    dtype = value.dtype
    if dtype in MOVED or not _is_number(dtype):
        return value
    if dtype.size > 1:
        return tf.bitcast(value, _PARTS.get(dtype) or _OF_SIZE[dtype.size])
    # No supported dtype has one byte: such values are exact in float16. (A NaN stays a NaN.)
    return tf.cast(value, tf.float16)


def moved(carrier: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return what `to_move` has made of a tensor of `dtype` as it was."""
    if dtype in MOVED or not _is_number(dtype):
        return carrier
    return tf.bitcast(carrier, dtype) if dtype.size > 1 else tf.cast(carrier, dtype)


def to_add(value: tf.Tensor) -> tf.Tensor:
    """Return a tensor that a reduction takes, for `added`; it may have one axis more."""
    dtype = value.dtype
    if dtype in _PARTS:
        return tf.bitcast(value, _PARTS[dtype])
    if dtype in _ADDED_AS_INT64:
        return tf.cast(value, tf.int64)
    if dtype == tf.uint64:
        return tf.bitcast(value, tf.int64)
    return tf.cast(value, tf.float32) if _is_float8(dtype) else value


def added(total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the sum of what `to_add` has made of tensors of `dtype`, in that dtype."""
    if dtype in _PARTS or dtype == tf.uint64:
        return tf.bitcast(total, dtype)
    return tf.cast(total, dtype) if dtype in _ADDED_AS_INT64 or _is_float8(dtype) else total


def _is_number(dtype):
    return dtype == tf.bool or dtype.is_integer or dtype.is_floating or dtype.is_complex


def _is_float8(dtype):
    return dtype.is_floating and dtype.size == 1
