"""Orthogonality, a read-out of the Gram matrix, against the lengths of the vectors themselves."""

import numpy as np
import pytest
import tensorflow as tf
from support import oracle

from tf_adasum.aggregation import LocalExchange, RuleApplication, Scheme, aggregate, rules
from tf_adasum.aggregation import orthogonality as measured

# Lengths from float64 inner products of some tens of elements: 1e-16·√n, and the tree amplifies
# that where gradients nearly cancel; the seeds give nothing closer than a hundredth.
TOLERANCE = 1e-11

SHAPES = [(20,), (3, 5), ()]


def rows_of(replicas, size=30, seed=0):
    """Gradients with a part in common."""
    random = np.random.default_rng([seed, replicas])
    return random.standard_normal(size) + random.standard_normal([replicas, size])


def orthogonality(rows, averaged=1):
    """Of one variable, from the gradients ``[R, N]``."""
    gram = tf.constant(oracle.segment_gram(rows, [0, rows.shape[1]]))
    of_variable, of_all = measured.orthogonality(*measured.squared_lengths(gram, averaged)).numpy()
    np.testing.assert_equal(of_variable, of_all)
    return of_variable


def by_vectors(*variables, averaged=1):
    """‖adasum(g_1 … g_R)‖² / Σ‖g_i‖², each variable combined on its own, all lengths added."""
    combined = separate = 0.0
    for own in variables:
        own = np.reshape(np.asarray(own, np.float64), [len(own) // averaged, averaged, -1])
        own = own.mean(axis=1)
        combined += np.sum(oracle.adasum(own) ** 2)
        separate += np.sum(own**2)
    return combined / separate


@pytest.mark.parametrize("replicas", range(1, 10))
def test_equals_the_lengths_of_the_vectors(replicas):
    for seed in range(5):
        rows = rows_of(replicas, seed=seed)
        np.testing.assert_allclose(orthogonality(rows), by_vectors(rows), rtol=TOLERANCE)


@pytest.mark.parametrize(("replicas", "averaged"), [(2, 2), (4, 2), (8, 2), (6, 3), (6, 2), (5, 5)])
def test_of_means_of_neighbours(replicas, averaged):
    rows = rows_of(replicas)
    found = orthogonality(rows, averaged)
    means = rows.reshape([-1, averaged, rows.shape[1]]).mean(axis=1)
    np.testing.assert_allclose(found, by_vectors(means), rtol=TOLERANCE)
    np.testing.assert_allclose(found, orthogonality(means), rtol=TOLERANCE)
    assert replicas == averaged or abs(found - orthogonality(rows)) > 1e-3, "the means count"


@pytest.mark.parametrize("replicas", range(1, 10))
def test_of_orthogonal_gradients_is_one(replicas):
    lengths = np.linspace(0.1, 10, replicas)
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal([20, replicas]))[0].T
    np.testing.assert_allclose(orthogonality(lengths[:, None] * axes), 1, rtol=TOLERANCE)


@pytest.mark.parametrize("replicas", range(1, 10))
def test_of_identical_gradients_is_one_part_of_them(replicas):
    rows = np.repeat(rows_of(1), replicas, axis=0)
    np.testing.assert_allclose(orthogonality(rows), 1 / replicas, rtol=1e-14)


@pytest.mark.parametrize("replicas", range(2, 10))
def test_is_at_most_one(replicas):
    random = np.random.default_rng(replicas)
    found = []
    for _ in range(50):
        # In three dimensions they point together, across and apart.
        rows = random.standard_normal([replicas, 3]) * random.uniform(0.01, 10, [replicas, 1])
        found.append(orthogonality(rows))
    assert 0 <= min(found) and max(found) <= 1 + TOLERANCE
    assert min(found) < 0.5 < max(found), "the property says something"


def test_falls_below_one_part_where_gradients_point_apart():
    a = rows_of(1)[0]
    assert orthogonality(np.stack([a, -a])) == 0
    assert orthogonality(np.stack([a, -0.5 * a])) < 0.5


def test_of_zeros_is_not_a_number():
    assert np.isnan(orthogonality(np.zeros([3, 4])))


def test_of_all_variables_adds_up_their_lengths():
    variables = [rows_of(3, size, seed=size) for size in (4, 9)] + [np.zeros([3, 5])]
    gram = np.concatenate([oracle.segment_gram(rows, [0, rows.shape[1]]) for rows in variables])
    found = measured.orthogonality(*measured.squared_lengths(tf.constant(gram))).numpy()
    expected = [by_vectors(variables[0]), by_vectors(variables[1]), np.nan, by_vectors(*variables)]
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


# ---- as a rule application measures it ---------------------------------------------------------


@pytest.mark.parametrize("bucket_bytes", [None, 1])
@pytest.mark.parametrize("averaged", [1, 2])
@pytest.mark.parametrize(
    "rule",
    [rules.Adasum(), rules.Adasum("model"), rules.AdaCons(), rules.Sum(), rules.Mean()],
    ids=repr,
)
def test_is_measured_beside_every_rule(rule, averaged, bucket_bytes):
    """It is that of each variable, whatever the rule and its granularity."""
    random = np.random.default_rng(5)
    common = [random.standard_normal(shape) for shape in SHAPES]
    gradients = [[own + random.standard_normal(own.shape) for own in common] for _ in range(4)]
    scheme = Scheme(rule, 4, averaged)
    first = RuleApplication.of_first_step(scheme, len(SHAPES))
    application = RuleApplication(
        first.groups, first.state, measures_orthogonality=True, averaged=averaged
    )
    combined = aggregate(gradients, LocalExchange(scheme), bucket_bytes, application)

    variables = [[own[i] for own in gradients] for i in range(len(SHAPES))]
    expected = [by_vectors(own, averaged=averaged) for own in variables]
    expected.append(by_vectors(*variables, averaged=averaged))
    np.testing.assert_allclose(application.orthogonality(), expected, rtol=TOLERANCE)

    # Measuring changes no gradient.
    unmeasured = aggregate(gradients, LocalExchange(scheme), bucket_bytes)
    for one, other in zip(combined, unmeasured, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_of_a_variable_without_elements_is_not_a_number():
    application = RuleApplication([0, 1], measures_orthogonality=True)
    gradients = [[np.ones([3]), np.ones([0])] for _ in range(2)]
    aggregate(gradients, LocalExchange(Scheme(rules.Adasum(), 2)), application=application)
    np.testing.assert_allclose(application.orthogonality(), [0.5, np.nan, 0.5])
