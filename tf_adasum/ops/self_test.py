"""Compare every kernel on one device with NumPy, for `python -m tf_adasum.doctor`."""

import numpy as np
import tensorflow as tf

from tf_adasum import ops

# Five segments, of which one is empty, and one has a single element.
SEGMENTS = (0, 1003, 1003, 1004, 2048, 3001)

# The largest errors of correct kernels, relative to the terms that are added. They include the
# rounding of the result. For kernels that compute in float32, they also include the rounding of the
# terms; see `tf_adasum.ops`.
TOLERANCES = {tf.float64: 1e-13, tf.float32: 5e-6, tf.float16: 1e-3, tf.bfloat16: 8e-3}
GRAM_TOLERANCES = {dtype: min(bound, 5e-6) for dtype, bound in TOLERANCES.items()}


def failures(device: str) -> list[str]:
    """Return the wrong results of the operations on a device.

    Args:
        device: A logical device, such as "/device:GPU:0".

    Returns:
        One line for each operation and dtype with a wrong result; an empty list if all results are
        correct.

    Raises:
        tf.errors.OpError: If an operation does not run at all.
    """
    found = []
    with tf.device(device):
        for dtype, tolerance in TOLERANCES.items():
            rows = np.random.default_rng(0).standard_normal([3, SEGMENTS[-1]])
            rows_RN = rows.astype(dtype.as_numpy_dtype)
            coefficients_SR = np.random.default_rng(1).standard_normal([len(SEGMENTS) - 1, 3])
            results = {
                "segment_gram": ops.segment_gram(rows_RN, SEGMENTS),
                "segment_weighted_sum": ops.segment_weighted_sum(
                    rows_RN, coefficients_SR, SEGMENTS
                ),
                "pairwise_combine": ops.pairwise_combine(rows_RN[0], rows_RN[1], SEGMENTS),
            }
            expected = _expected(rows_RN.astype(np.float64), coefficients_SR)
            for name, (value, magnitude) in expected.items():
                bound = GRAM_TOLERANCES[dtype] if name == "segment_gram" else tolerance
                error = np.abs(results[name].numpy().astype(np.float64) - value)
                if not (error <= bound * magnitude).all():
                    found.append(f"{name} of {dtype.name} is wrong by up to {error.max():.2g}")
    return found


def _expected(
    rows_RN: np.ndarray, coefficients_SR: np.ndarray
) -> dict[str, tuple[np.ndarray, ...]]:
    """Return the correct results in float64, each with the sum of its terms' absolute values."""
    gram, weighted_sum, combined = [], [], []
    for c_R, begin, end in zip(coefficients_SR, SEGMENTS, SEGMENTS[1:], strict=False):
        own_RW = rows_RN[:, begin:end]
        gram.append((own_RW @ own_RW.T, np.abs(own_RW) @ np.abs(own_RW).T))
        weighted_sum.append((c_R @ own_RW, np.abs(c_R) @ np.abs(own_RW)))
        a, b = own_RW[:2]
        of_a, of_b = (1 - a @ b / (2 * x @ x) if x.size else 1.0 for x in (a, b))
        combined.append((of_a * a + of_b * b, (1 + abs(of_a)) * abs(a) + (1 + abs(of_b)) * abs(b)))
    return {
        "segment_gram": tuple(np.stack(part) for part in zip(*gram, strict=True)),
        "segment_weighted_sum": tuple(np.hstack(part) for part in zip(*weighted_sum, strict=True)),
        "pairwise_combine": tuple(np.hstack(part) for part in zip(*combined, strict=True)),
    }
