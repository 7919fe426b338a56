"""Independent float64 oracle, in NumPy, on the vectors themselves.

Nothing here goes through a Gram matrix: the tree of Adasum combines whole vectors, as the paper
writes it, so that code which evaluates the tree on inner products has something to disagree with.

Shape letters: S segments, R rows (replicas), N elements in a row.
"""

import itertools

import numpy as np

# Half a unit in the last place, for the one rounding of a result.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
# Below its smallest normal number a dtype rounds absolutely, and TensorFlow's threads flush to zero
# (float16 is computed in float32, which nothing flushes).
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 0.0}

# A squared norm below this counts as zero: its vector keeps the coefficient 1, so 0 ⊕ b = b.
ZERO_NORM = np.sqrt(np.finfo(np.float64).tiny)


def pairwise(a, b) -> np.ndarray:
    """adasum(a, b) = (1 - a·b / (2‖a‖²))·a + (1 - a·b / (2‖b‖²))·b; NaN where not all is finite."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.full_like(a, np.nan)
    ab, aa, bb = (np.sum(x * y) for x, y in ((a, b), (a, a), (b, b)))
    of_a = 1 - ab / (2 * aa) if aa >= ZERO_NORM else 1.0
    of_b = 1 - ab / (2 * bb) if bb >= ZERO_NORM else 1.0
    return of_a * a + of_b * b


def adasum(vectors) -> np.ndarray:
    """The tree: neighbours in rank order are combined, an odd last one is carried unchanged."""
    level = [np.asarray(vector, np.float64) for vector in vectors]
    while len(level) > 1:
        pairs = [pairwise(a, b) for a, b in zip(level[0::2], level[1::2], strict=False)]
        carried = level[-1:] if len(level) % 2 else []
        level = pairs + carried
    return level[0]


def segment_gram(rows, segments) -> np.ndarray:
    """[S, R, R]: the inner products of all pairs of rows in each segment, one at a time."""
    rows_RN = np.asarray(rows, np.float64)
    row_count = len(rows_RN)
    gram_SRR = np.zeros([len(segments) - 1, row_count, row_count])
    for s in range(len(segments) - 1):
        segment = rows_RN[:, segments[s] : segments[s + 1]]
        for i in range(row_count):
            for j in range(row_count):
                gram_SRR[s, i, j] = np.sum(segment[i] * segment[j])
    return gram_SRR


def segment_weighted_sum(rows, c, segments) -> np.ndarray:
    """[N]: Σ_i c[s, i] · rows[i] in each segment, in rank order."""
    rows_RN = np.asarray(rows, np.float64)
    combined_N = np.zeros(rows_RN.shape[1])
    for s in range(len(segments) - 1):
        here = slice(segments[s], segments[s + 1])
        for i in range(len(rows_RN)):
            combined_N[here] += c[s, i] * rows_RN[i, here]
    return combined_N


# ---- tolerances --------------------------------------------------------------------------------


def assert_rounded(actual, expected, error=0.0, dtype=None):
    """`actual` is `expected` up to `error` and one rounding, to `dtype` or to its own dtype.

    1 % more, because stock TensorFlow casts float64 to the 16-bit types through float32.
    """
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    name = np.dtype(dtype or actual.dtype).name
    allowed = 1.01 * ROUNDING[name] * np.abs(expected) + SMALLEST[name] + error
    excess = np.abs(actual.astype(np.float64) - expected) - allowed
    assert (excess <= 0).all(), f"largest excess {excess.max()}"


def assert_pairwise(actual, a, b, segments, error):
    """`actual` is the Adasum of each segment; ratios of inner products are good to `error`."""
    assert np.asarray(actual).dtype == a.dtype
    a, b = a.astype(np.float64), b.astype(np.float64)
    expected, magnitude = np.zeros_like(a), np.zeros_like(a)
    for here in itertools.starmap(slice, itertools.pairwise(segments)):
        expected[here] = pairwise(a[here], b[here])
        norms = np.linalg.norm(a[here]), np.linalg.norm(b[here])
        for vector, own, other in ((a, *norms), (b, *norms[::-1])):
            magnitude[here] += np.abs(vector[here]) * (1 + other / own if own else 1)
    assert_rounded(actual, expected, error * magnitude)


def assert_gram(actual, rows, segments, error):
    """`actual` is the Gram matrix of each segment, up to a part `error` of the terms."""
    expected, magnitudes = segment_gram(rows, segments), np.abs(rows.astype(np.float64))
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert (np.abs(actual - expected) <= error * segment_gram(magnitudes, segments)).all()
    assert (actual == actual.swapaxes(1, 2)).all(), "symmetric to the last bit"


def assert_weighted(actual, rows, c, segments, error):
    """`actual` is the weighted sum of each segment, up to a part `error` of the terms."""
    assert np.asarray(actual).dtype == rows.dtype
    magnitude = segment_weighted_sum(np.abs(rows.astype(np.float64)), np.abs(c), segments)
    assert_rounded(actual, segment_weighted_sum(rows, c, segments), error * magnitude)


class AdaConsOracle:
    """AdaCons on the vectors, with the momentum of one group of variables.

    Nothing is guarded: for gradients whose consensus is not zero.

    Attributes:
        momentum: m, ascending; None before the first step.
    """

    def __init__(self, beta, rescale=False):
        self._beta, self._rescale = beta, rescale
        self.momentum = None

    def step(self, vectors) -> np.ndarray:
        """Return the coefficients c, so that Σ_i c_i g_i is the combination."""
        vectors = [np.asarray(vector, np.float64) for vector in vectors]
        mean = sum(vectors) / len(vectors)
        norms = np.array([np.sqrt(np.sum(g * g)) + 1e-8 for g in vectors])
        alpha = np.array([np.sum(g * mean) for g in vectors]) / norms
        ascending = sorted(range(len(alpha)), key=lambda i: alpha[i])
        now = alpha[ascending]
        before = now if self.momentum is None else self.momentum
        self.momentum = self._beta * before + (1 - self._beta) * now
        for rank, replica in enumerate(ascending):
            alpha[replica] = self.momentum[rank]
        alpha = alpha / np.sum(alpha)
        return alpha / norms * (np.sum(alpha * norms) if self._rescale else 1)
