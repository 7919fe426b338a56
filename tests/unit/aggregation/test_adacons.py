"""AdaCons against its formulas on the vectors, step after step."""

import numpy as np
import pytest
import tensorflow as tf
from support import oracle
from support.all_pairs import BACKENDS, parametrize_all_pairs

from tf_adasum.aggregation import LocalReductionPlanner, RuleApplication, Scheme, aggregate
from tf_adasum.aggregation.rules import AdaCons, granularity

# Inner products and coefficients are float64: 1e-16·√n, which α/Σα amplifies tenfold at the
# worst of these seeds. A wrong rank, a missing β or a missing ε is an error of 1e-3 and more.
TOLERANCE = 1e-12

# No single number: of some with different signs, Σα is nearly zero and decides about the result.
SHAPES = [(3, 5), (17,), (2,), (40,)]
PATHS = ["encoder/kernel", "encoder/bias", "head/kernel", "head/bias"]
DTYPES = [tf.float32, tf.float64, tf.bfloat16, tf.float16]


def gradients_of_step(step, replicas, dtypes=(tf.float64,) * 4, scale=1.0):
    """For each replica its gradients, with a part in common; one replica points the other way."""
    random = np.random.default_rng([step, replicas])
    common = [random.standard_normal(shape) for shape in SHAPES]
    lengths = scale * random.uniform(0.5, 3, replicas)
    if replicas > 3:
        lengths[step % replicas] *= -1
    return [
        [
            np.asarray(length * (own + random.standard_normal(own.shape))).astype(d.as_numpy_dtype)
            for own, d in zip(common, dtypes, strict=True)
        ]
        for length in lengths
    ]


def flat(gradients, members=range(4)):
    """``[R, N]``: for each replica one vector of its gradients at the indices `members`."""
    vectors = [[np.ravel(own[i]).astype(float) for i in members] for own in gradients]
    return np.array([np.concatenate(own) for own in vectors])


def gram_of(rows):
    return tf.constant((rows @ rows.T)[None])


def first_state(rule, groups, replicas):
    return {k: tf.constant(v) for k, v in rule.initial_state(groups, replicas).items()}


# ---- against the formulas on the vectors -------------------------------------------------------


@parametrize_all_pairs(
    replicas=range(1, 9),
    averaged=[1, 2],
    beta=[0, 0.9, 0.99],
    of=[
        "model",
        "variable",
        {"encoder/.*": "encoder"},
        {".*/kernel": "kernels", ".*/bias": "biases"},
    ],
    backend=BACKENDS,
    bucket_bytes=[None, 1],
    rescale=[False, True],
)
def test_several_steps_equal_the_formulas(
    replicas, averaged, beta, of, backend, bucket_bytes, rescale
):
    """Mixed dtypes, means of `averaged` neighbours, and with `bucket_bytes` 1 many buckets."""
    rule, groups = AdaCons(beta, of, rescale), granularity.groups(of, PATHS)
    scheme = Scheme(rule, averaged * replicas, averaged)
    oracles = [oracle.AdaConsOracle(beta, rescale) for _ in range(max(groups) + 1)]
    state = first_state(scheme.single_level_rule, len(oracles), scheme.replicas)
    for step in range(4):
        gradients = gradients_of_step(step, scheme.replicas, DTYPES)
        application = RuleApplication(groups, state)
        combined = aggregate(gradients, LocalReductionPlanner(scheme), bucket_bytes, application)
        state = application.state
        for group, own_oracle in enumerate(oracles):
            members = np.flatnonzero(groups == group)
            means = flat(gradients, members).reshape(replicas, averaged, -1).mean(axis=1)
            c_R = np.repeat(own_oracle.step(means), averaged) / averaged
            for i in members:
                own = [gradient[i] for gradient in gradients]
                terms = [c * vector.astype(float) for c, vector in zip(c_R, own, strict=True)]
                assert combined[i].dtype == own[0].dtype
                error = TOLERANCE * sum(map(np.linalg.norm, terms))
                oracle.assert_rounded(combined[i], sum(terms), error)
        momentum = [own_oracle.momentum for own_oracle in oracles]
        np.testing.assert_allclose(state["momentum"], momentum, rtol=TOLERANCE)
        assert (state["steps"].numpy() == step + 1).all()


def test_epsilon_counts_for_tiny_gradients():
    rows = flat(gradients_of_step(0, 3, scale=1e-9))  # norms around ε
    c_R = oracle.AdaConsOracle(0).step(rows)
    np.testing.assert_allclose(
        AdaCons(0, rescale=False).coefficients(gram_of(rows)), [c_R], rtol=TOLERANCE
    )


# ---- special gradients -------------------------------------------------------------------------


@pytest.mark.parametrize("steps_before", [0, 1])
@pytest.mark.parametrize("rescale", [False, True])
def test_gradients_without_consensus_give_finite_results(rescale, steps_before):
    some = flat(gradients_of_step(3, 1))
    for signs in ([0, 0, 0, 0], [1, -1, 1, -1], [1, 1, -1, -1]):
        rule = AdaCons(rescale=rescale)
        state = first_state(rule, 1, 4)
        for _ in range(steps_before):
            _, state = rule.coefficients_and_state(gram_of(flat(gradients_of_step(0, 4))), state)
        rows = np.array(signs)[:, None] * some
        c_SR, state = rule.coefficients_and_state(gram_of(rows), state)
        length = np.linalg.norm(c_SR.numpy()[0] @ rows)
        # A sum of at most four unit vectors, or of the gradients themselves.
        bound = 4 * (np.linalg.norm(some) if rescale else 1)
        assert length <= (bound if steps_before else 1e-12)
        assert all(np.isfinite(value).all() for value in state.values())
