"""The expected results of the kernels, in float64 on the CPU, and the allowed errors."""

import itertools

import numpy as np

# Half a unit in the last place of each type: a result is rounded once.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
# Relative errors of sums: at most 128 products are added in float32, on tensor cores.
SUMS = {"float16": 2.0**-17, "bfloat16": 2.0**-17, "float32": 2.0**-17, "float64": 1e-12}


def random_rows(dtype, row_count, row_stride):
    """Return rows with a common part, so that no inner product is close to zero."""
    random = np.random.default_rng(row_stride)
    common = 0.3 * random.standard_normal(row_stride, np.float32)
    rows = np.empty((row_count, row_stride), dtype)
    for row in rows:
        row[:] = random.standard_normal(row_stride, np.float32) + common
    return rows


def expect_combined(a, b, segments):
    """Return the combination of two rows in float64, and the allowed error of a kernel."""
    expected, allowed = np.empty(a.size), np.empty(a.size)
    for begin, end in itertools.pairwise(segments):
        x, y = a[begin:end].astype(np.float64), b[begin:end].astype(np.float64)
        xy, xx, yy = np.dot(x, y), np.dot(x, x), np.dot(y, y)
        combined = (1 - xy / (2 * xx)) * x + (1 - xy / (2 * yy)) * y
        expected[begin:end] = combined
        ratio = np.sqrt(max(xx, yy) / min(xx, yy))
        allowed[begin:end] = SUMS[a.dtype.name] * (1 + ratio) * (np.abs(x) + np.abs(y))
    return expected, allowed + 1.01 * ROUNDING[a.dtype.name] * np.abs(expected)


def expect_gram(rows, segments, chunk=1 << 20):
    """Return the Gram matrices [S, R, R] in float64, and the allowed error of a kernel."""
    gram = np.zeros((len(segments) - 1, len(rows), len(rows)))
    for s, (begin, end) in enumerate(itertools.pairwise(segments)):
        for at in range(begin, end, chunk):
            x = rows[:, at : min(at + chunk, end)].astype(np.float64)
            gram[s] += x @ x.T
    norms = np.sqrt(np.diagonal(gram, axis1=1, axis2=2))
    return gram, SUMS[rows.dtype.name] * norms[:, :, None] * norms[:, None, :]


def expect_weighted_sum(rows, coefficients, segments):
    """Return the sum in float64, and the allowed error of a kernel."""
    expected, magnitude = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for row, of_row in zip(rows, coefficients.T, strict=True):
        for s, (begin, end) in enumerate(itertools.pairwise(segments)):
            term = of_row[s] * row[begin:end].astype(np.float64)
            expected[begin:end] += term
            magnitude[begin:end] += np.abs(term)
    dtype = rows.dtype.name
    return expected, SUMS[dtype] * magnitude + 1.01 * ROUNDING[dtype] * np.abs(expected)


def difference(actual, expected, allowed):
    """Return None if all errors are allowed (a NaN is not), else a text."""
    error = np.abs(actual.astype(np.float64) - expected)
    wrong = ~(error <= allowed)
    if not wrong.any():
        return None
    first = np.unravel_index(np.argmax(wrong), wrong.shape)
    where = ", ".join(map(str, first))
    text = (
        f"{np.count_nonzero(wrong)} of {wrong.size} numbers are wrong, the first one at [{where}]"
    )
    return f"{text}: {float(actual[first])!r} instead of {float(expected[first])!r}"
