"""The three array operations of aggregation, on the fastest available backend.

Replicas hold vectors of N elements; `segments` divides the elements into one segment per variable:

    gram         = segment_gram(rows, segments)                     every inner product
    coefficients = any rule on `gram`                               a few numbers
    combined     = segment_weighted_sum(rows, coefficients, segments)

`pairwise_combine` does all three steps for Adasum on two vectors. Each operation runs on the
compiled op ("custom") if this op was built for the device with the data, a CPU or an NVIDIA GPU.
Otherwise it runs on stock TensorFlow ("tensorflow"), with the same contract. `library` chooses the
backend. In functions that XLA compiles (`jit_compile=True`), operations always run on stock
TensorFlow. None of the operations is differentiable.

Precision: results are computed in the precision of this table, and then rounded to their dtype:

                             inner products                   linear combination
    stock TensorFlow         float64                          float64
    CPU                      float64                          float64
    CPU, pairwise_combine    in float32, with an error        float32, but float64 for float64
                             below 1e-6 of ‖a‖‖b‖ (*)
    GPU, all three           in float32, below 1e-5 (*)       float32, but float64 for float64

(*) Products are computed in float32. A few products at a time are added in float32, and these sums
are added in float64. For float64 inputs, everything is computed in float64. The CPU op switches to
float64 if squares would leave the range of float32. On a GPU, squares of elements below 1e-19 lose
precision, squares of elements below 1e-23 count as zero, and elements above 1e19 make their segment
NaN.

Shape letters: S segments, R rows (replicas), N elements in a row.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021,
arXiv 2006.02924.
"""

import types
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.ops import library, reference

__all__ = [
    "backend",
    "gram_relative_error",
    "pairwise_combine",
    "same_bits_everywhere",
    "segment_gram",
    "segment_weighted_sum",
]

# The dtypes of gradients.
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def pairwise_combine(
    a: Any, b: Any, segments: Any = None, *, device: str | None = None
) -> tf.Tensor:
    """Combine two tensors by Adasum, segment by segment.

        combined = (1 - a·b / (2‖a‖²))·a + (1 - a·b / (2‖b‖²))·b

    Orthogonal segments are added, equal segments are averaged. A squared norm below 1.4917e-154
    (the square root of the smallest positive normal float64) counts as zero, and its coefficient is
    1. A segment of the result is NaN if this segment of `a` or `b` has a NaN or Inf, or if a
    squared norm overflows float64. The docstring of this module lists the precision.

    Args:
        a: Any shape; float16, bfloat16, float32 or float64.
        b: The shape and dtype of `a`.
        segments: [S + 1], int64: offsets into the flattened tensors. The first is 0, the last is
            the number of elements, and they never decrease. Defaults to one segment of all
            elements.
        device: The device that the call runs on, such as "CPU:0". It only chooses the backend; no
            data is moved. Defaults to the device of `a`.

    Returns:
        The shape and dtype of `a`.

    Raises:
        ValueError: If an argument is wrong and this is known before the operation runs.
        tf.errors.InvalidArgumentError: When the operation runs, if an argument is wrong.

    Example:
        >>> a, b = [1.0, 0.0, 3.0], [0.0, 2.0, 3.0]
        >>> tf_adasum.ops.pairwise_combine(a, b, segments=[0, 2, 3]).numpy()
        array([1., 2., 3.], dtype=float32)

    Source: Maleki et al., MLSys 2021, arXiv 2006.02924, the pairwise operator. The paper does not
    define the result for a zero norm.
    """
    a = _float_tensor(a, "a")
    b = _float_tensor(b, "b", like=a)
    if not a.shape.is_compatible_with(b.shape):
        raise ValueError(
            "a and b are expected to have the same shape; "
            f"Received: a.shape={a.shape}, b.shape={b.shape}"
        )
    if segments is None:
        size = a.shape.num_elements()
        segments = tf.stack([0, tf.size(a, tf.int64)]) if size is None else [0, size]
    segments = _segments_tensor(segments, a.shape.num_elements())
    return _run("pairwise_combine", device, a, b, segments)


def segment_gram(rows: Any, segments: Any, *, device: str | None = None) -> tf.Tensor:
    """Compute the inner products of all pairs of rows, segment by segment.

        gram[s, i, j] = Σ_{k in segment s} rows[i, k] · rows[j, k]

    Args:
        rows: [R, N], R >= 1; float16, bfloat16, float32 or float64.
        segments: [S + 1], int64: offsets into a row. The first is 0, the last is N, and they never
            decrease.
        device: The device that the call runs on, such as "CPU:0". It only chooses the backend; no
            data is moved. Defaults to the device of `rows`.

    Returns:
        [S, R, R], float64: exactly symmetric, zeros for an empty segment. `gram_relative_error`
        returns a bound of the error.

    Raises:
        ValueError: If an argument is wrong and this is known before the operation runs.
        tf.errors.InvalidArgumentError: When the operation runs, if an argument is wrong.

    Example:
        >>> rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        >>> tf_adasum.ops.segment_gram(rows, segments=[0, 2, 3]).numpy().tolist()
        [[[5.0, 14.0], [14.0, 41.0]], [[9.0, 18.0], [18.0, 36.0]]]
    """
    rows = _rows_tensor(rows)
    segments = _segments_tensor(segments, rows.shape[1])
    return _run("segment_gram", device, rows, segments)


def segment_weighted_sum(
    rows: Any, coefficients: Any, segments: Any, *, device: str | None = None
) -> tf.Tensor:
    """Combine the rows linearly, segment by segment.

        combined[k] = Σ_i coefficients[s, i] · rows[i, k]      for k in segment s

    Args:
        rows: [R, N], R >= 1; float16, bfloat16, float32 or float64.
        coefficients: [S, R], converted to float64.
        segments: [S + 1], int64: offsets into a row. The first is 0, the last is N, and they never
            decrease.
        device: The device that the call runs on, such as "CPU:0". It only chooses the backend; no
            data is moved. Defaults to the device of `rows`.

    Returns:
        [N], the dtype of `rows`. Rows are added in order, on CPUs in float64, and the sum is
        rounded once. A NaN coefficient makes its whole segment NaN.

    Raises:
        ValueError: If an argument is wrong and this is known before the operation runs.
        tf.errors.InvalidArgumentError: When the operation runs, if an argument is wrong.

    Example:
        >>> rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        >>> coefficients = [[1.0, 0.5], [0.0, 2.0]]
        >>> tf_adasum.ops.segment_weighted_sum(rows, coefficients, segments=[0, 2, 3]).numpy()
        array([ 3. ,  4.5, 12. ], dtype=float32)
    """
    rows = _rows_tensor(rows)
    segments = _segments_tensor(segments, rows.shape[1])
    coefficients = _coefficients_tensor(coefficients, rows, segments)
    return _run("segment_weighted_sum", device, rows, coefficients, segments)


def backend(device: str | None = None) -> str:
    """Return the backend of the three operations.

    Args:
        device: A device, such as "CPU:0" or "/device:GPU:0". Defaults to the CPU.

    Returns:
        "custom" for the compiled op, "tensorflow" for stock TensorFlow.

    Raises:
        ValueError: If the environment variable `TF_ADASUM_OPS` has an unknown value.
        RuntimeError: If `TF_ADASUM_OPS` is "custom" and the compiled op cannot be loaded.

    Example:
        >>> tf_adasum.ops.backend("TPU:0")
        'tensorflow'
    """
    return "tensorflow" if library.load(_device_type(device or "CPU")) is None else "custom"


def gram_relative_error(gram: tf.Tensor) -> float:
    """Return a bound of the rounding error of `segment_gram` on the device of its result.

    Args:
        gram: A result of `segment_gram`, or a tensor computed from it on the same device.

    Returns:
        A bound of the error of ``gram[s, i, j]`` in units of ``sqrt(gram[s, i, i] gram[s, j, j])``.
        It is 1e-5 for the GPU kernels: they compute products in float32, and on tensor cores they
        also add groups of 128 products in float32. Otherwise it is 1e-14.

    Example:
        >>> with tf.device("CPU:0"):
        ...     gram = tf_adasum.ops.segment_gram(tf.constant([[1.0, 2.0], [3.0, 4.0]]), [0, 2])
        ...     error = tf_adasum.ops.gram_relative_error(gram)
        >>> error <= 1e-5
        True
    """
    where = _device_of(gram, None)
    return 1e-5 if _device_type(where) == "GPU" and backend(where) == "custom" else 1e-14


def same_bits_everywhere(device: str) -> bool:
    """Return whether the operations give the same bits on all devices of this type.

    This is true only for the compiled op on CPUs. In stock TensorFlow, the order of sums depends on
    the processor; in the GPU kernels, it depends on the GPU.

    Example:
        >>> is_compiled = tf_adasum.ops.backend("CPU:0") == "custom"
        >>> tf_adasum.ops.same_bits_everywhere("CPU:0") == is_compiled
        True
    """
    return _device_type(device) == "CPU" and backend(device) == "custom"


def _run(name: str, device: str | None, *tensors: tf.Tensor) -> tf.Tensor:
    """Run an operation by its name, on the backend for the first of its tensors."""
    implementation = _implementation(tensors[0], device)
    if implementation is None:
        return getattr(reference, name)(*tensors)
    return getattr(implementation, f"tf_adasum_{name}")(*tensors)


def _implementation(tensor: tf.Tensor, device: str | None) -> types.ModuleType | None:
    """Return the compiled ops for an operation on `tensor`, or `None` for stock TensorFlow."""
    if not tf.executing_eagerly():  # eager code, as in the doctor, does not need `compat`
        from tf_adasum.compat import tensorflow as tensorflow_compat

        if tensorflow_compat.compiles_with_xla():
            return None
    return library.load(_device_type(_device_of(tensor, device)))


def _device_of(tensor: tf.Tensor, device: str | None) -> str:
    # In a graph, a tensor made outside of any tf.device scope has no device. A new operation shows
    # the device of the current scope. Without a scope, TensorFlow prefers a GPU.
    where = device or tensor.device or tf.identity(tensor).device
    return where or ("GPU" if tf.config.list_logical_devices("GPU") else "CPU")


def _device_type(device: str) -> str | None:
    name = device if ":" in device else f"{device}:0"
    return tf.DeviceSpec.from_string(name).device_type


def _float_tensor(value: Any, name: str, like: tf.Tensor | None = None) -> tf.Tensor:
    dtype = None if like is None or hasattr(value, "dtype") else like.dtype
    tensor = tf.convert_to_tensor(value, dtype=dtype)
    if tensor.dtype not in DTYPES:
        raise ValueError(
            f"{name} is expected to be float16, bfloat16, float32 or float64; "
            f"Received: {name}.dtype={tensor.dtype.name}"
        )
    if like is not None and tensor.dtype != like.dtype:
        raise ValueError(
            f"{name} is expected to have the dtype of a, {like.dtype.name}; "
            f"Received: {name}.dtype={tensor.dtype.name}"
        )
    return tensor


def _rows_tensor(value: Any) -> tf.Tensor:
    rows = _float_tensor(value, "rows")
    is_matrix = rows.shape.is_compatible_with([None, None])
    if not is_matrix or (rows.shape.rank == 2 and rows.shape[0] == 0):
        raise ValueError(
            "rows is expected to have the shape [R, N] with R >= 1; "
            f"Received: rows.shape={rows.shape}"
        )
    return rows


def _segments_tensor(value: Any, element_count: int | None) -> tf.Tensor:
    """Return `segments` as int64 offsets, checked as far as their values are known."""
    is_typed = hasattr(value, "dtype")
    segments = tf.convert_to_tensor(value, dtype=None if is_typed else tf.int64)
    if segments.dtype != tf.int64:
        raise ValueError(
            f"segments is expected to be int64; Received: segments.dtype={segments.dtype.name}"
        )
    is_vector = segments.shape.is_compatible_with([None])
    if not is_vector or (segments.shape.rank == 1 and segments.shape[0] == 0):
        raise ValueError(
            "segments is expected to have the shape [S + 1]; "
            f"Received: segments.shape={segments.shape}"
        )
    offsets = tf.get_static_value(segments)
    if offsets is None:
        return segments
    if offsets[0] != 0 or np.any(np.diff(offsets) < 0):
        raise ValueError(
            "segments is expected to hold non-decreasing offsets, the first of them 0; "
            f"Received: segments={offsets}"
        )
    if element_count is not None and offsets[-1] != element_count:
        raise ValueError(
            f"segments is expected to end at {element_count}, the number of elements; "
            f"Received: segments={offsets}"
        )
    return segments


def _coefficients_tensor(value: Any, rows: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
    # Without the hint, Python numbers would pass through float32 and lose half of their digits.
    tensor = tf.convert_to_tensor(value, dtype_hint=tf.float64)
    if tensor.dtype.is_complex or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise ValueError(
            f"coefficients is expected to be real; Received: coefficients.dtype={tensor.dtype.name}"
        )
    offset_count = None if segments.shape.rank is None else segments.shape[0]
    expected = [None if offset_count is None else offset_count - 1, rows.shape[0]]
    if not tensor.shape.is_compatible_with(expected):
        raise ValueError(
            f"coefficients is expected to have the shape [S, R] = {expected}; "
            f"Received: coefficients.shape={tensor.shape}"
        )
    return tf.cast(tensor, tf.float64)
