"""Converts values of other dtypes to dtypes that TensorFlow's collectives support, and back.

| collective | dtypes that TensorFlow 2.21 supports |
| --- | --- |
| broadcast | bool, float16, float32, float64, int32, int64 |
| gather | float16, float32, float64, int32, int64 |
| reduce | bfloat16, float16, float32, float64, int32, int64 |

The conversions for broadcast and gather keep the bits of a value. For float8, they keep the value,
but perhaps not the bits of a NaN. With the conversions for reduce, integers are added exactly. A
sum that is too large for its dtype wraps around.
"""

import tensorflow as tf

# The dtypes that every collective supports.
MOVED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# For each size in bytes: the dtype as which other dtypes are sent. It is never int32, because GPUs
# keep int32 in the memory of the host.
_OF_SIZE = {2: tf.float16, 4: tf.float32, 8: tf.int64}
_PARTS = {tf.complex64: tf.float32, tf.complex128: tf.float64}
_ADDED_AS_INT64 = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.uint32)


def encoded(value: tf.Tensor) -> tf.Tensor:
    """Convert a tensor for broadcast and gather. The result may have one more axis."""
    dtype = value.dtype
    if dtype in MOVED or not _is_number(dtype):
        return value
    if dtype.size > 1:
        return tf.bitcast(value, _PARTS.get(dtype) or _OF_SIZE[dtype.size])
    # No supported dtype has one byte. float16 represents such values exactly. (A NaN stays NaN.)
    return tf.cast(value, tf.float16)


def decoded(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Convert a result of `encoded` back to a tensor of `dtype`."""
    if dtype in MOVED or not _is_number(dtype):
        return value
    return tf.bitcast(value, dtype) if dtype.size > 1 else tf.cast(value, dtype)


def encoded_for_sum(value: tf.Tensor) -> tf.Tensor:
    """Convert a tensor for a reduction. The result may have one more axis."""
    dtype = value.dtype
    if dtype in _PARTS:
        return tf.bitcast(value, _PARTS[dtype])
    if dtype in _ADDED_AS_INT64:
        return tf.cast(value, tf.int64)
    if dtype == tf.uint64:
        return tf.bitcast(value, tf.int64)
    return tf.cast(value, tf.float32) if _is_float8(dtype) else value


def decoded_sum(total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Convert a sum of results of `encoded_for_sum` back to `dtype`."""
    if dtype in _PARTS or dtype == tf.uint64:
        return tf.bitcast(total, dtype)
    return tf.cast(total, dtype) if dtype in _ADDED_AS_INT64 or _is_float8(dtype) else total


def _is_number(dtype):
    return dtype == tf.bool or dtype.is_integer or dtype.is_floating or dtype.is_complex


def _is_float8(dtype):
    return dtype.is_floating and dtype.size == 1
