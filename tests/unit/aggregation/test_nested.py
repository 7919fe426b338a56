"""Rules one above the other on one Gram matrix, against the combinations of the vectors.

Shape letters: R replicas, N elements.
"""

import numpy as np
import pytest
import tensorflow as tf
from support import oracle
from support.pairs import in_pairs

from tf_adasum.aggregation import LocalExchange, RuleApplication, Scheme, aggregate, rules
from tf_adasum.aggregation.rules.nested import Nested, nested

AdaCons, Adasum, Mean, Sum = rules.AdaCons, rules.Adasum, rules.Mean, rules.Sum

# Float64 inner products, 1e-16·√n, which the levels amplify where gradients nearly cancel; the
# seeds give nothing closer than a hundredth. A wrong group or order is an error of size 1.
TOLERANCE = 1e-11

VECTORS = {Adasum: oracle.adasum, Mean: lambda own: np.mean(own, axis=0), Sum: sum}


def rows_of(replicas, seed=0, size=40):
    """Gradients ``[R, N]`` with a part in common."""
    random = np.random.default_rng([seed, replicas])
    return random.standard_normal(size) + random.standard_normal([replicas, size])


def gram_of(rows):
    return tf.constant(oracle.segment_gram(rows, [0, rows.shape[1]]))


def grouped(rows, radix, rule):
    """Every `radix` neighbours combined, on the vectors."""
    return np.stack([VECTORS[rule](rows[i : i + radix]) for i in range(0, len(rows), radix)])


def by_vectors(rows, levels):
    for radix, rule in levels:
        rows = grouped(rows, radix, type(rule))
    (combined,) = rows
    return combined


def combined_by(rule, rows):
    return rule.coefficients(gram_of(rows)).numpy()[0] @ rows


def total(rows):
    return sum(np.linalg.norm(own) for own in rows)


# ---- which levels are one rule -----------------------------------------------------------------


@pytest.mark.parametrize("radices", [[4], [2, 2], [2, 3], [4, 5], [2, 2, 2, 3]])
def test_levels_of_adasums_own_tree_are_adasum(radices):
    last = Adasum()
    rule = nested([*((radix, Adasum()) for radix in radices[:-1]), (radices[-1], last)])
    assert rule is last


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([(3, Adasum()), (2, Adasum())], [(3, Adasum), (2, Adasum)]),
        ([(2, Adasum()), (3, Adasum()), (2, Adasum())], [(6, Adasum), (2, Adasum)]),
        ([(3, Adasum()), (2, Adasum()), (2, Adasum())], [(3, Adasum), (4, Adasum)]),
        ([(2, Mean()), (2, Adasum()), (2, Adasum())], [(2, Mean), (4, Adasum)]),
        ([(2, Mean()), (2, Mean())], [(2, Mean), (2, Mean)]),
        ([(2, Adasum()), (2, Sum()), (2, Adasum())], [(2, Adasum), (2, Sum), (2, Adasum)]),
    ],
    ids=str,
)
def test_other_levels_stay(levels, expected):
    rule = nested(levels)
    assert isinstance(rule, Nested)
    assert [(radix, type(own)) for radix, own in rule.levels] == expected


def test_one_level_is_its_rule():
    rule = AdaCons()
    assert nested([(5, rule)]) is rule


@pytest.mark.parametrize(
    ("levels", "needs_gram", "granularity"),
    [
        ([(2, Mean()), (2, Sum())], False, "variable"),
        ([(2, Mean()), (2, Adasum("model"))], True, "model"),
        ([(3, Adasum()), (2, Mean())], True, "variable"),
        ([(2, Mean()), (2, AdaCons())], True, "model"),
    ],
    ids=str,
)
def test_is_as_its_rules_are(levels, needs_gram, granularity):
    rule = nested(levels)
    assert rule.needs_gram == needs_gram and rule.granularity == granularity
    assert not rule.works_in_levels


# ---- against the vectors -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "levels",
    [
        [(2, Adasum()), (2, Adasum())],
        [(3, Adasum()), (2, Adasum())],
        [(5, Adasum()), (3, Adasum())],
        [(3, Adasum()), (3, Adasum()), (2, Adasum())],
        [(2, Mean()), (3, Adasum())],
        [(3, Mean()), (4, Adasum())],
        [(1, Mean()), (4, Adasum())],
        [(4, Mean()), (1, Adasum())],
        [(2, Mean()), (3, Adasum()), (2, Adasum())],
        [(2, Sum()), (3, Mean())],
        [(2, Mean()), (3, Sum())],
        [(2, Adasum()), (3, Sum())],
        [(3, Adasum()), (2, Mean()), (2, Adasum())],
    ],
    ids=str,
)
def test_equals_the_combinations_of_combinations(levels):
    replicas = int(np.prod([radix for radix, _ in levels]))
    for rule in (nested(levels), Nested(levels)):
        for seed in range(3):
            rows = rows_of(replicas, seed)
            c_SR = rule.coefficients(gram_of(rows))
            assert c_SR.dtype == tf.float64 and c_SR.shape == [1, replicas]
            expected = by_vectors(rows, levels)
            np.testing.assert_allclose(
                c_SR.numpy()[0] @ rows, expected, rtol=0, atol=TOLERANCE * total(rows)
            )


def test_the_comparison_above_can_fail():
    rows = rows_of(6)
    combined = combined_by(nested([(3, Adasum()), (2, Adasum())]), rows)
    for radices in ([6], [2, 3]):
        other = by_vectors(rows, [(radix, Adasum()) for radix in radices])
        assert np.max(np.abs(combined - other)) > 1e-3


def test_several_segments_are_apart():
    rows, segments = rows_of(6), [0, 7, 7, 40]
    rule = Nested([(2, Mean()), (3, Adasum())])
    c_SR = rule.coefficients(tf.constant(oracle.segment_gram(rows, segments))).numpy()
    for s in (0, 2):
        own = rows[:, segments[s] : segments[s + 1]]
        expected = by_vectors(own, rule.levels)
        np.testing.assert_allclose(c_SR[s] @ own, expected, rtol=0, atol=TOLERANCE * total(rows))
    np.testing.assert_array_equal(c_SR[1], [0.5] * 6, "zeros are orthogonal: the sum of the means")


@pytest.mark.parametrize("levels", [[(2, Sum()), (2, Mean())], [(2, Mean()), (2, Sum())]], ids=str)
def test_sum_and_mean_do_not_look_at_the_gradients(levels):
    for gram in (np.zeros([3, 4, 4]), np.ones([3, 4, 4])):
        c_SR = nested(levels).coefficients(tf.constant(gram))
        np.testing.assert_array_equal(c_SR, np.full([3, 4], 0.5))


@pytest.mark.parametrize("bucket_bytes", [None, 1])
@pytest.mark.parametrize("of", ["variable", "model"])
def test_adasum_of_means_through_aggregate(backend, of, bucket_bytes):
    """Two variables; three means of two neighbours each."""
    rows = rows_of(6)
    gradients = [[own[:25], own[25:]] for own in rows]
    scheme = Scheme(Adasum(of), 6, averaged=2)
    combined = tf.concat(aggregate(gradients, LocalExchange(scheme), bucket_bytes), axis=0)
    means = grouped(rows, 2, Mean)
    whole = [(0, 40)] if of == "model" else [(0, 25), (25, 40)]
    expected = np.concatenate([oracle.adasum(means[:, start:end]) for start, end in whole])
    np.testing.assert_allclose(combined, expected, rtol=0, atol=TOLERANCE * total(rows))


@pytest.mark.parametrize("rescale", [False, True])
def test_adacons_of_means(backend, rescale):
    """The state is that of three groups, not of six replicas."""
    rule = AdaCons(0.9, rescale=rescale)
    scheme, expected = Scheme(rule, 6, averaged=2), oracle.AdaConsOracle(0.9, rescale)
    state = RuleApplication.of_first_step(scheme, 2).state
    assert state["momentum"].shape == [1, 3] and state["steps"].shape == [1]
    for step in range(4):
        rows = rows_of(6, seed=step)
        gradients = [[own[:25], own[25:]] for own in rows]
        application = RuleApplication([0, 0], state)
        combined = tf.concat(
            aggregate(gradients, LocalExchange(scheme), application=application), axis=0
        )
        state = application.state
        means = grouped(rows, 2, Mean)
        np.testing.assert_allclose(combined, expected.step(means) @ means, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(state["momentum"][0], expected.momentum, rtol=1e-12)
        assert state["steps"].numpy().tolist() == [step + 1]


def test_a_bad_number_below_reaches_the_top():
    for bad in (np.nan, np.inf):
        rows = rows_of(6)
        rows[4, 3] = bad
        with np.errstate(invalid="ignore"):
            c_SR = Nested([(2, Mean()), (3, Adasum())]).coefficients(gram_of(rows))
        assert not np.isfinite(c_SR.numpy()).any()


# ---- cancellation ------------------------------------------------------------------------------


def nearly_cancelling(k, seed):
    """Pairs whose first one has a mean of 10^-k of its gradients' length."""
    a, b, c, d, e = rows_of(5, seed, size=300)
    return np.stack([a, -a * (1 + 10.0**-k), b, c, d, e])


@in_pairs(k=range(1, 10), below=[Mean(), Sum(), Adasum()], place=[0, 1, 2])
def test_adasum_of_groups_that_cancel_stays_bounded(k, below, place):
    levels = [(2, below), (3, Adasum())]
    for seed in range(3):
        rows = np.roll(nearly_cancelling(k, seed), 2 * place, axis=0)
        combined = combined_by(Nested(levels), rows)
        # ‖adasum(p, q)‖ ≤ 3/2 (‖p‖ + ‖q‖), twice in a tree of three; half more for Adasum below.
        bound = 1.5**2 * (1.5 if isinstance(below, Adasum) else 1) * total(rows)
        assert np.linalg.norm(combined) <= bound
        # The node is ε/2 long, ε = 10^-k, beside coefficients of 1: its squared length is
        # 4e-15/ε² uncertain, relatively. At k = 6 the guard begins to take it for zero.
        if k <= 5:
            error = max(TOLERANCE, 4e-14 * 10.0 ** (2 * k)) * total(rows)
            np.testing.assert_allclose(combined, by_vectors(rows, levels), rtol=0, atol=error)


@pytest.mark.parametrize("k", range(1, 10))
def test_adasum_of_pairs_that_all_cancel_stays_bounded(k):
    for seed in range(3):
        a, b = rows_of(2, seed, size=300)
        opposite = -(1 + 10.0**-k)
        rows = np.stack([a, a * opposite, b, b * opposite])
        rule = Nested([(2, Mean()), (2, Adasum())])
        assert np.linalg.norm(combined_by(rule, rows)) <= 1.5 * total(rows)


def test_a_mean_lost_in_rounding_counts_as_zero():
    a, b = np.array([3.0, 4.0, 0.0]), np.array([1.0, 2.0, 2.0])
    gram = oracle.segment_gram([a, -a, b, b], [0, 3])
    # Rounding of 1e-15: ‖a - a‖² and <a - a, b> are no longer zero, and their quotient is anything.
    for i, j in ((0, 1), (1, 2), (1, 3)):
        gram[0, i, j] = gram[0, j, i] = gram[0, i, j] * (1 - 1e-15)
    c_SR = Nested([(2, Mean()), (2, Adasum())]).coefficients(tf.constant(gram))
    np.testing.assert_allclose(c_SR, [[0.5] * 4], rtol=1e-12)


def adacons_of_cancelling_means(k, length):
    """The second step, with the momentum of the first: every rank has a weight of its own.

    Returns:
        The combination, and the same on the vectors.
    """
    rule, expected = Nested([(2, Mean()), (3, AdaCons(0.99))]), oracle.AdaConsOracle(0.99)
    state = {name: tf.constant(value) for name, value in rule.initial_state(1, 6).items()}
    for rows in (rows_of(6, size=300), length * nearly_cancelling(k, seed=0)):
        c_SR, state = rule.coefficients_and_state(gram_of(rows), state)
        means = grouped(rows, 2, Mean)
        exact = expected.step(means) @ means
    return c_SR.numpy()[0] @ rows, exact


@pytest.mark.parametrize("length", [1.0, 1000.0])
@pytest.mark.parametrize("k", range(1, 6))
def test_adacons_of_means_that_cancel(k, length):
    combined, exact = adacons_of_cancelling_means(k, length)
    error = max(TOLERANCE, 4e-14 * 10.0 ** (2 * k))  # as for Adasum above
    np.testing.assert_allclose(combined, exact, rtol=0, atol=error)


@pytest.mark.parametrize("k", [7, 8, 9])
def test_adacons_of_means_lost_in_rounding_stays_bounded(k):
    # Weights of unit vectors, positive here, that add up to 1; at the edge of the guard half of a
    # vector's length can be rounding.
    assert np.linalg.norm(adacons_of_cancelling_means(k, 1000.0)[0]) <= 1.5
