"""Orthogonality, computed from the Gram matrix, against the lengths of the vectors themselves."""

import numpy as np
import tensorflow as tf
from support import oracle
from support.all_pairs import parametrize_all_pairs
from support.scheme_oracle import gradients_of

from tf_adasum.aggregation import LocalReductionPlanner, RuleApplication, Scheme, aggregate
from tf_adasum.aggregation.orthogonality import orthogonality
from tf_adasum.aggregation.rules import AdaCons, Adasum, Mean, Sum

# Lengths from float64 inner products of some tens of elements: 1e-16·√n, and the tree amplifies
# that where gradients nearly cancel; the seeds give nothing closer than a hundredth.
TOLERANCE = 1e-11

SHAPES = [(20,), (3, 5), (), (0,)]


def by_vectors(variables, local_reduction_size):
    """‖adasum(g_1 … g_R)‖² / Σ‖g_i‖² of each variable, and of all, whose lengths are summed."""
    lengths = []
    for own in variables:
        shape = [len(own) // local_reduction_size, local_reduction_size, -1]
        means = np.reshape(own, shape).mean(axis=1)
        lengths.append([np.sum(oracle.adasum(means) ** 2), np.sum(means**2)])
    combined, separate = np.array([*lengths, np.sum(lengths, axis=0)]).T
    with np.errstate(invalid="ignore"):
        return combined / separate


@parametrize_all_pairs(
    rule=[Adasum(), Adasum("model"), AdaCons(), Sum(), Mean()],
    hosts=[1, 2, 3, 5, 7],
    local_reduction_size=[1, 2, 3],
    bucket_bytes=[None, 1],
)
def test_orthogonality_of_each_variable_is_measured_with_every_rule(
    rule, hosts, local_reduction_size, bucket_bytes
):
    """It depends neither on the rule nor on its granularity; without elements it is NaN."""
    gradients = gradients_of(SHAPES, hosts * local_reduction_size, tf.float64)
    scheme = Scheme(rule, hosts * local_reduction_size, local_reduction_size)
    first = RuleApplication.of_first_step(scheme, len(SHAPES))
    application = RuleApplication(first.groups, first.state, True, local_reduction_size)
    combined = aggregate(gradients, LocalReductionPlanner(scheme), bucket_bytes, application)
    wanted = by_vectors(list(zip(*gradients, strict=True)), local_reduction_size)
    found = orthogonality(application.measures())
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE)

    # Measuring changes no gradient.
    unmeasured = aggregate(gradients, LocalReductionPlanner(scheme), bucket_bytes)
    for one, other in zip(combined, unmeasured, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)
