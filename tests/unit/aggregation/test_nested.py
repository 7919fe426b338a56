"""Rules one above the other on one Gram matrix, against the combinations of the vectors.

Shape letters: R replicas, N elements.
"""

import numpy as np
import tensorflow as tf
from support import oracle, scheme_oracle
from support.all_pairs import parametrize_all_pairs

from tf_adasum.aggregation.rules import Adasum, Mean, Sum
from tf_adasum.aggregation.rules.nested import Nested

# Float64 inner products, 1e-16·√n, which the levels amplify where gradients nearly cancel; the
# seeds give nothing closer than a hundredth. A wrong group or order is an error of size 1.
TOLERANCE = 1e-11


def nearly_cancelling(k, seed):
    """Pairs, of which the first has a mean that is 10^-k times as long as its gradients."""
    a, b, c, d, e = (own for (own,) in scheme_oracle.gradients_of([(300,)], 5, tf.float64, seed))
    return np.stack([a, -a * (1 + 10.0**-k), b, c, d, e])


# A node is ε/2 long, ε = 10^-k, with coefficients of 1: its squared length has the relative error
# 4e-15/ε². At k = 6 the guard begins to take it for zero, and the vectors are no measure.


@parametrize_all_pairs(k=range(1, 10), below=[Mean(), Sum(), Adasum()], place=[0, 1, 2])
def test_adasum_of_groups_that_cancel_stays_bounded(k, below, place):
    levels = [(2, below), (3, Adasum())]
    for seed in range(3):
        rows = np.roll(nearly_cancelling(k, seed), 2 * place, axis=0)
        gram, total = oracle.segment_gram(rows, [0, 300]), np.linalg.norm(rows, axis=1).sum()
        combined = Nested(levels).coefficients(tf.constant(gram)).numpy()[0] @ rows
        # ‖adasum(p, q)‖ ≤ 3/2 (‖p‖ + ‖q‖), twice in a tree of three; half more for Adasum below.
        bound = 1.5**2 * (1.5 if isinstance(below, Adasum) else 1) * total
        assert np.linalg.norm(combined) <= bound
        if k <= 5:
            error = max(TOLERANCE, 4e-14 * 10.0 ** (2 * k)) * total
            of_vectors = [(radix, scheme_oracle.COMBINE[type(rule)]) for radix, rule in levels]
            wanted = scheme_oracle.combine_hierarchically(of_vectors, rows)
            np.testing.assert_allclose(combined, wanted, rtol=0, atol=error)


def test_a_mean_lost_in_rounding_counts_as_zero():
    a, b = np.array([3.0, 4.0, 0.0]), np.array([1.0, 2.0, 2.0])
    gram = oracle.segment_gram([a, -a, b, b], [0, 3])
    # With a rounding of 1e-15, ‖a - a‖² and <a - a, b> are not zero; their quotient is arbitrary.
    for i, j in ((0, 1), (1, 2), (1, 3)):
        gram[0, i, j] = gram[0, j, i] = gram[0, i, j] * (1 - 1e-15)
    c_SR = Nested([(2, Mean()), (2, Adasum())]).coefficients(tf.constant(gram))
    np.testing.assert_allclose(c_SR, [[0.5] * 4], rtol=1e-12)
