"""AdaCons against its formulas on the vectors, step after step, and what its state survives.

Shape letters: S segments, P groups of variables, R replicas, N elements.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import oracle
from support.pairs import BACKENDS, in_pairs

from tf_adasum.aggregation import LocalExchange, RuleApplication, Scheme, aggregate, rules
from tf_adasum.aggregation.rules import granularity

AdaCons = rules.AdaCons

# Inner products and coefficients are float64: 1e-16·√n, which α/Σα amplifies tenfold at the
# worst of these seeds. A wrong rank, a missing β or a missing ε is an error of 1e-3 and more.
TOLERANCE = 1e-12
# Half a unit in the last place for the one rounding of the result; see test_rules.py.
ROUNDING = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8, tf.float32: 2.0**-24, tf.float64: 2.0**-50}

SHAPES = [(3, 5), (17,), (), (40,)]
PATHS = ["encoder/kernel", "encoder/bias", "head/kernel", "head/bias"]
DTYPES = [tf.float32, tf.float64, tf.bfloat16, tf.float16]


def gradients_of_step(step, replicas, shapes=SHAPES, dtypes=None, scale=1.0):
    """For each replica its gradients, with a part in common; one replica points the other way."""
    random = np.random.default_rng([step, replicas])
    common = [random.standard_normal(shape) for shape in shapes]
    lengths = scale * random.uniform(0.5, 3, replicas)
    if replicas > 3:
        lengths[step % replicas] *= -1
    dtypes = dtypes or [tf.float64] * len(shapes)
    return [
        [
            np.asarray(length * (own + random.standard_normal(own.shape))).astype(d.as_numpy_dtype)
            for own, d in zip(common, dtypes, strict=True)
        ]
        for length in lengths
    ]


def flat(gradients, group):
    """For each replica one vector of its gradients at these indices."""
    return [np.concatenate([np.ravel(own[i]).astype(float) for i in group]) for own in gradients]


def gram_of(gradients, groups=((0, 1, 2, 3),)):
    """``[P, R, R]``: the Gram matrices of groups of variables."""
    rows = [np.stack(flat(gradients, group)) for group in groups]
    return tf.constant(np.stack([own @ own.T for own in rows]))


def first_state(rule, groups, replicas):
    return {k: tf.constant(v) for k, v in rule.initial_state(groups, replicas).items()}


class Run:
    """Steps of a rule through `aggregate`, the state handed on from application to application."""

    def __init__(self, rule, replicas, **options):
        self.groups = granularity.groups(rule.granularity, PATHS)
        self.state = first_state(rule, max(self.groups) + 1, replicas)
        self._exchange = LocalExchange(Scheme(rule, replicas))
        self._options = options

    def step(self, gradients):
        application = RuleApplication(self.groups, self.state)
        combined = aggregate(gradients, self._exchange, application=application, **self._options)
        self.state = application.state
        return combined


def assert_combined(combined, gradients, groups, oracles):
    """Each group's variables are Σ c_i g_i with the oracle's coefficients of that group."""
    for group, own_oracle in enumerate(oracles):
        members = [i for i, own in enumerate(groups) if own == group]
        c_R = own_oracle.step(flat(gradients, members))
        for i in members:
            own = [gradient[i].astype(float) for gradient in gradients]
            expected = sum(c * g for c, g in zip(c_R, own, strict=True))
            size = sum(abs(c) * np.linalg.norm(np.ravel(g)) for c, g in zip(c_R, own, strict=True))
            actual = tf.convert_to_tensor(combined[i])
            allowed = 1.01 * ROUNDING[actual.dtype] * np.abs(expected) + TOLERANCE * size
            if actual.dtype == tf.float16:
                allowed += 2.0**-24  # the spacing of its subnormals
            error = np.abs(actual.numpy().astype(float) - expected)
            assert (error <= allowed).all(), f"variable {i}: excess {np.max(error - allowed)}"


# ---- against the formulas on the vectors -------------------------------------------------------


@in_pairs(replicas=range(1, 9), beta=[0, 0.9, 0.99], rescale=[False, True])
def test_twenty_steps_equal_the_formulas(replicas, beta, rescale):
    rule, expected = AdaCons(beta, rescale=rescale), oracle.AdaConsOracle(beta, rescale)
    state = first_state(rule, 1, replicas)
    for step in range(20):
        gradients = gradients_of_step(step, replicas)
        c_SR, state = rule.coefficients_and_state(gram_of(gradients), state)
        c_R = expected.step(flat(gradients, range(4)))
        assert c_SR.dtype == tf.float64 and c_SR.shape == [1, replicas]
        np.testing.assert_allclose(c_SR[0], c_R, rtol=0, atol=TOLERANCE * np.max(np.abs(c_R)))
        np.testing.assert_allclose(state["momentum"][0], expected.momentum, rtol=TOLERANCE)
        assert state["steps"].numpy().tolist() == [step + 1]


def test_epsilon_counts_for_tiny_gradients():
    gradients = gradients_of_step(0, 3, scale=1e-9)  # norms around ε
    c_SR = AdaCons(0).coefficients(gram_of(gradients))
    c_R = oracle.AdaConsOracle(0).step(flat(gradients, range(4)))
    np.testing.assert_allclose(c_SR[0], c_R, rtol=TOLERANCE)
    norms = [np.linalg.norm(own) for own in flat(gradients, range(4))]
    assert max(norms) < 1e-7, "the test says something"


def test_momentum_belongs_to_ranks_by_hand():
    """Along three axes α_i = ‖g_i‖/3; the second step has the same lengths on other replicas.

    m is the same after both steps, so is c_i = α_i / (6 ‖g_i‖ / 3) = 1/6. With the sorting
    permutation in place of the rank the second step would give other coefficients.
    """
    rule = AdaCons(0.5)
    state = first_state(rule, 1, 3)
    for lengths in ([1.0, 2.0, 3.0], [2.0, 3.0, 1.0]):
        gram = tf.constant(np.diag(np.square(lengths))[None])
        c_SR, state = rule.coefficients_and_state(gram, state)
        # ε = 1e-8 beside lengths of 1 to 3.
        np.testing.assert_allclose(c_SR, [[1 / 6] * 3], rtol=3e-8)
        np.testing.assert_allclose(state["momentum"], [[1 / 3, 2 / 3, 1]], rtol=3e-8)


@in_pairs(
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
def test_several_steps_through_aggregate(backend, of, bucket_bytes, rescale):
    """Mixed dtypes, and with `bucket_bytes` 1 a bucket for each variable."""
    rule, replicas = AdaCons(0.9, of, rescale), 4
    run = Run(rule, replicas, bucket_bytes=bucket_bytes)
    oracles = [oracle.AdaConsOracle(0.9, rescale) for _ in range(max(run.groups) + 1)]
    for step in range(3):
        gradients = gradients_of_step(step, replicas, dtypes=DTYPES)
        combined = run.step(gradients)
        assert [own.dtype for own in combined] == DTYPES
        assert_combined(combined, gradients, run.groups, oracles)


def test_the_comparison_above_can_fail():
    gradients = gradients_of_step(0, 4)
    combined = Run(AdaCons(0, "model"), 4).step(gradients)
    with pytest.raises(AssertionError, match="variable 0: excess"):
        assert_combined(combined, gradients, range(4), [oracle.AdaConsOracle(0) for _ in range(4)])


def test_a_model_with_a_sparse_gradient(backend):
    """One coefficient for all variables, one of them an embedding of six rows."""
    shapes = [(3, 5), (6, 3), (), (40,)]
    indices = [[0, 2], [2, 5], [5, 1], [2, 3]]
    run, expected = Run(AdaCons(0.9), 4, bucket_bytes=1), oracle.AdaConsOracle(0.9)
    for step in range(3):
        dense = gradients_of_step(step, 4, shapes)
        sparse = [list(own) for own in dense]
        for replica, touched in enumerate(indices):
            untouched = [i for i in range(6) if i not in touched]
            dense[replica][1][untouched] = 0
            rows = tf.constant(dense[replica][1][touched])
            sparse[replica][1] = tf.IndexedSlices(rows, tf.constant(touched), [6, 3])
        combined = run.step(sparse)
        assert isinstance(combined[1], tf.IndexedSlices)
        assert sorted(combined[1].indices.numpy()) == [0, 1, 2, 3, 5]
        assert_combined(combined, dense, run.groups, [expected])


# ---- properties --------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_without_momentum_alpha_stays_as_it_is(replicas):
    rule = AdaCons(0)
    used = first_state(rule, 1, replicas)
    for step in range(3):
        gram = gram_of(gradients_of_step(step, replicas))
        c_SR, used = rule.coefficients_and_state(gram, used)
        assert c_SR.numpy().tobytes() == rule.coefficients(gram).numpy().tobytes()


@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_identical_gradients_get_equal_coefficients(replicas):
    own = gradients_of_step(0, 1)[0]
    c_SR = AdaCons().coefficients(gram_of([own] * replicas)).numpy()
    np.testing.assert_allclose(c_SR, np.full([1, replicas], c_SR[0, 0]), rtol=1e-15)
    length = np.linalg.norm(flat([own], range(4))[0])
    # A unit vector in all: ε beside a length of 5 to 10.
    np.testing.assert_allclose(np.sum(c_SR) * length, 1, rtol=1e-8)


@in_pairs(replicas=[1, 2, 3, 8], backend=BACKENDS, beta=[0, 0.99])
def test_rescaled_identical_gradients_come_back(backend, replicas, beta):
    """On a first step, and on one whose momentum tells the ranks apart."""
    run = Run(AdaCons(beta, rescale=True), replicas)
    run.step(gradients_of_step(0, replicas))
    own = gradients_of_step(1, 1)[0]
    for used in (run, Run(AdaCons(beta, rescale=True), replicas)):
        for combined, gradient in zip(used.step([own] * replicas), own, strict=True):
            np.testing.assert_allclose(combined, gradient, rtol=1e-14)


def test_rescaled_coefficients_do_not_depend_on_the_length_of_the_gradients():
    gradients = gradients_of_step(0, 5)
    longer = gradients_of_step(0, 5, scale=1000.0)
    for rescale, factor in ((True, 1), (False, 1000)):
        rule = AdaCons(rescale=rescale)
        short, long = (rule.coefficients(gram_of(own)) for own in (gradients, longer))
        np.testing.assert_allclose(factor * long, short, rtol=1e-7)  # ε beside lengths of 1 to 30


@pytest.mark.parametrize("used", [False, True], ids=["first step", "later step"])
@pytest.mark.parametrize("rescale", [False, True])
def test_gradients_without_consensus_give_finite_results(backend, rescale, used):
    some = gradients_of_step(3, 1)[0]
    zeros = [np.zeros_like(own) for own in some]
    opposite = [-own for own in some]
    for gradients in ([zeros] * 4, [some, opposite] * 2, [some, some, opposite, opposite]):
        run = Run(AdaCons(rescale=rescale), 4)
        if used:
            run.step(gradients_of_step(0, 4))
        combined = run.step(gradients)
        for own in combined:
            assert np.isfinite(own).all()
            # A sum of at most four unit vectors, or of the gradients themselves.
            assert np.linalg.norm(own) <= 4 * (np.linalg.norm(some[1]) if rescale else 1) + 1e-12
        if not used:
            assert max(np.max(np.abs(own)) for own in combined) < 1e-13
        assert all(np.isfinite(value).all() for value in run.state.values())


def test_one_gradient_of_zeros_is_left_out():
    some = gradients_of_step(3, 3)
    gradients = [*some, [np.zeros_like(own) for own in some[0]]]
    c_SR = AdaCons().coefficients(gram_of(gradients)).numpy()
    assert np.isfinite(c_SR).all() and c_SR[0, 3] == 0
    # ḡ is three quarters of theirs, which α/Σα takes out again.
    np.testing.assert_allclose(c_SR[:, :3], AdaCons().coefficients(gram_of(some)), rtol=1e-12)


# ---- NaN ---------------------------------------------------------------------------------------


@in_pairs(
    of=["variable", "model", {"head/.*": "head"}],
    backend=BACKENDS,
    at=[0, 2],
    bad=[np.nan, np.inf],
)
def test_a_bad_group_leaves_its_state_alone(backend, of, at, bad):
    run = Run(AdaCons(0.9, of), 3)
    oracles = [oracle.AdaConsOracle(0.9) for _ in range(max(run.groups) + 1)]
    for step in range(2):
        gradients = gradients_of_step(step, 3)
        assert_combined(run.step(gradients), gradients, run.groups, oracles)
    before = {name: value.numpy() for name, value in run.state.items()}
    clean = gradients_of_step(2, 3)
    spoilt = [[own.copy() for own in gradient] for gradient in clean]
    spoilt[1][at][...] = bad
    combined = run.step(spoilt)

    is_bad_P = np.arange(len(oracles)) == run.groups[at]
    for i, own in enumerate(combined):
        expected = np.isnan if is_bad_P[run.groups[i]] else np.isfinite
        assert expected(own.numpy()).all()
    after = {name: value.numpy() for name, value in run.state.items()}
    for name in ("momentum", "steps"):
        assert after[name][is_bad_P].tobytes() == before[name][is_bad_P].tobytes()
    assert after["steps"].tolist() == np.where(is_bad_P, 2, 3).tolist()

    # The others have gone on: the bad group's oracle alone has not seen this step.
    for group in np.flatnonzero(~is_bad_P):
        oracles[group].step(flat(clean, np.flatnonzero(run.groups == group)))
    last = gradients_of_step(3, 3)
    assert_combined(run.step(last), last, run.groups, oracles)


def test_a_bad_first_step_starts_no_momentum():
    run, expected = Run(AdaCons(0.9), 2), oracle.AdaConsOracle(0.9)
    bad = gradients_of_step(0, 2)
    bad[0][1][3] = np.nan
    run.step(bad)
    for step in (1, 2):
        gradients = gradients_of_step(step, 2)
        assert_combined(run.step(gradients), gradients, run.groups, [expected])


# ---- saving, arguments -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [AdaCons(), AdaCons(0, "variable", True), AdaCons(0.5, {"a/.*": "a", ".*/bias": "biases"})],
    ids=repr,
)
def test_is_saved_and_restored(rule):
    saved = keras.saving.serialize_keras_object(rule)
    assert saved["registered_name"] == "tf_adasum>AdaCons"
    restored = keras.saving.deserialize_keras_object(saved)
    assert type(restored) is AdaCons
    assert restored.get_config() == rule.get_config() and repr(restored) == repr(rule)
    assert eval(repr(rule), {"AdaCons": AdaCons}).get_config() == rule.get_config()


def test_defaults():
    assert repr(rules.get("adacons")) == repr(AdaCons(0.99, "model", False))
    assert not AdaCons().works_in_levels


@pytest.mark.parametrize("wrong", [1, 1.0, -0.1, np.nan, np.inf, True, False, "x", None])
def test_refuses_a_momentum(wrong):
    with pytest.raises(ValueError, match=r"`momentum` .* in \[0, 1\).*Received: momentum="):
        AdaCons(momentum=wrong)


@pytest.mark.parametrize("wrong", [1, 0, None, "yes", np.True_])
def test_refuses_a_rescale(wrong):
    with pytest.raises(ValueError, match="`rescale` must be True or False"):
        AdaCons(rescale=wrong)


@pytest.mark.parametrize("wrong", ["models", "Model", None, 1, {}, {"(": "a"}, {"a": 1}])
def test_refuses_a_granularity(wrong):
    with pytest.raises(ValueError, match=r"`granularity`.*Received: "):
        AdaCons(granularity=wrong)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("numbers", [(1, -2), (3, -1), (1e-3, -1e4), (1e-6, -1), (5, -5)])
def test_numbers_of_different_signs_stay_bounded(numbers, rescale):
    """α is ±ḡ: but for ε their sum would vanish, and ε must not decide about the result."""
    vector = np.array(numbers, np.float64)
    gram = tf.constant(np.multiply.outer(vector, vector)[None])
    c_SR = rules.AdaCons(rescale=rescale).coefficients(gram)
    length = abs(float(np.sum(c_SR[0] * vector)))
    assert length <= (np.abs(vector).max() if rescale else 1)
