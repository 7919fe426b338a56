"""The expected results of replicas: rules on whole vectors in float64, and tolerances.

Nothing here goes through a Gram matrix; see also `oracle`.
"""

import numpy as np
import tensorflow as tf

from support import oracle
from tf_adasum.aggregation import rules

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]

# Of the float64 coefficients, as a part of Σ‖g_i‖: inner products carry 1e-16·√n, the tree
# amplifies that where gradients nearly cancel; the seeds give nothing closer than a hundredth.
COEFFICIENT_TOLERANCE = 1e-11
# What a rounding below the last level does to the result, in units of itself: the coefficients of
# the levels above are at most 1.5 here, and move by no more than the angles between the vectors.
LEVEL_AMPLIFICATION = 4


class Returns(rules.AggregationRule):
    """Returns the result of a function of the Gram matrices."""

    def __init__(self, function=lambda gram: gram[:, 0, :]):
        self._function = function

    def coefficients(self, gram):
        return self._function(gram)


class RankWeightedRule(rules.AggregationRule):
    """Coefficients 1, 2, 3, … of the replicas: shows in which order a rule sees them."""

    def coefficients(self, gram):
        return tf.ones_like(gram[:, 0, :]) * tf.range(1, gram.shape[-1] + 1, dtype=tf.float64)


class NormWeightedRule(rules.AggregationRule):
    """The squared norms as coefficients."""

    def coefficients(self, gram):
        return tf.linalg.diag_part(gram)


def mean(vectors):
    return np.mean(vectors, axis=0)


def adacons(vectors):
    """A first step of AdaCons, by its formulas: momentum starts at the first α and leave it.

    Where Σα vanishes in rounding all shares are equal; so for two numbers of different signs.
    """
    vectors = np.asarray(vectors)
    norms = np.array([np.linalg.norm(vector) for vector in vectors]) + 1e-8
    alpha = np.array([np.sum(vector * mean(vectors)) for vector in vectors]) / norms
    is_lost = abs(np.sum(alpha)) <= 1e-13 * np.sum(norms)
    shares = np.full(len(norms), 1 / len(norms)) if is_lost else alpha / np.sum(alpha)
    coefficients = shares / norms * np.sum(shares * norms)
    return sum(c * vector for c, vector in zip(coefficients, vectors, strict=True))


COMBINE = {
    rules.Adasum: oracle.adasum,
    rules.AdaCons: adacons,
    rules.Sum: lambda vectors: np.sum(vectors, axis=0),
    rules.Mean: mean,
    RankWeightedRule: lambda vectors: sum((i + 1) * vector for i, vector in enumerate(vectors)),
    NormWeightedRule: lambda vectors: sum(np.sum(vector * vector) * vector for vector in vectors),
}


def combine_hierarchically(levels, vectors):
    """Combine neighbours, then their combinations; `levels` has the radix and rule of each."""
    vectors = [np.asarray(vector, np.float64) for vector in vectors]
    for radix, combine in levels:
        groups = [vectors[i : i + radix] for i in range(0, len(vectors), radix)]
        vectors = [np.asarray(combine(group)) for group in groups]
    (combined,) = vectors
    return combined


def levels_of(scheme):
    """The radix and the rule of each level."""
    across = scheme.radix_plan or (scheme.replicas // scheme.local_reduction_size,)
    lower = [(scheme.local_reduction_size, mean)] if scheme.local_reduction_size > 1 else []
    return [*lower, *((radix, COMBINE[type(scheme.rule)]) for radix in across)]


def as_model(combine):
    """Turn a combination of vectors into one of models, lists of variables, as one vector each."""

    def combine_models(models):
        flat = [np.concatenate([v.astype(np.float64).ravel() for v in own]) for own in models]
        ends = np.cumsum([variable.size for variable in models[0]])[:-1]
        parts = np.split(combine(flat), ends)
        return [part.reshape(v.shape) for part, v in zip(parts, models[0], strict=True)]

    return combine_models


def combined(gradients, scheme):
    """What `scheme` should make of the replicas' gradients: a list of float64 arrays."""

    def combine(vectors):
        return combine_hierarchically(levels_of(scheme), vectors)

    if scheme.rule.granularity == "model":
        return as_model(combine)(gradients)
    return [combine(own) for own in zip(*gradients, strict=True)]


def gradients_of(shapes, replicas, dtype=tf.float32, seed=0):
    """For each replica the gradients of all variables, with a part in common."""
    random = np.random.default_rng(seed)
    common = [random.standard_normal(shape) for shape in shapes]
    return [
        [
            np.asarray(own + random.standard_normal(own.shape)).astype(dtype.as_numpy_dtype)
            for own in common
        ]
        for _ in range(replicas)
    ]


def assert_same_bits(results):
    """All replicas hold the same bits."""
    for other in results[1:]:
        for one, own in zip(results[0], other, strict=True):
            assert (own.dtype, own.shape) == (one.dtype, one.shape)
            assert own.tobytes() == one.tobytes()


def assert_close(actual, expected, own, *, dtype=None, levels=1, tolerance=COEFFICIENT_TOLERANCE):
    """`actual` combines the gradients `own` to `expected`, rounded once on each level to `dtype`.

    By default that is the dtype of `actual`.
    """
    dtype = np.dtype(dtype or actual.dtype)
    own = [gradient.astype(np.float64) for gradient in own]
    largest = np.max(np.abs(expected), initial=0)
    # The levels below spread a rounding over their vector: it is measured by the largest element.
    below = LEVEL_AMPLIFICATION * (levels - 1) * sum(np.max(np.abs(g), initial=0) for g in own)
    error = oracle.ROUNDING[dtype.name] * below + levels * oracle.SMALLEST[dtype.name]
    error += tolerance * max(1, largest) * sum(np.linalg.norm(g.ravel()) for g in own)
    oracle.assert_rounded(actual, expected, error, dtype)


def assert_combined(results, gradients, scheme, **options):
    """All replicas hold the same bits, and these are the expected ones in replica order."""
    assert_same_bits(results)
    wanted = combined(gradients, scheme)
    by_variable = zip(results[0], wanted, zip(*gradients, strict=True), strict=True)
    for actual, expected, own in by_variable:
        assert actual.dtype == own[0].dtype
        assert_close(actual, expected, own, **options)
