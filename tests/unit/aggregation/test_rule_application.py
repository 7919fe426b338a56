"""What becomes of the coefficients that a rule, a user's own above all, returns.

Shape letters: S segments, P groups, R replicas.
"""

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.aggregation import LocalExchange, RuleApplication, Scheme, aggregate, rules
from tf_adasum.aggregation.rules.checks import checked_coefficients


class Returns(rules.AggregationRule):
    """Returns what a function makes of the Gram matrices."""

    def __init__(self, function, granularity="variable", works_in_levels=False):
        self._function = function
        self.granularity = granularity
        self.works_in_levels = works_in_levels

    def coefficients(self, gram):
        return self._function(gram)

    def __repr__(self):
        return "Returns()"


def halves(gram):
    return tf.ones_like(gram[:, 0, :]) / 2


GRAM = tf.constant([[[1.0, 0.0], [0.0, 4.0]], [[9.0, 1.0], [1.0, 1.0]]], tf.float64)
EXPECTED = r"The rule Returns\(\) must return .* shape \[S, R\] = \(2, 2\).* Received: "


def checked(coefficients, gram=GRAM):
    return checked_coefficients(Returns(None), coefficients, gram)


# ---- shape and dtype ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coefficients", "message"),
    [
        (tf.ones([2]), r"shape \(2,\)"),
        (tf.ones([2, 3]), r"shape \(2, 3\)"),
        (tf.ones([3, 2]), r"shape \(3, 2\)"),
        (tf.ones([1, 2]), r"shape \(1, 2\)"),
        (tf.ones([2, 2, 1]), r"shape \(2, 2, 1\)"),
        (0.5, r"shape \(\)"),
        (tf.ones([2, 2], tf.int32), "dtype int32"),
        (tf.ones([2, 2], tf.bool), "dtype bool"),
        (tf.ones([2, 2], tf.complex64), "dtype complex64"),
        ([[1, 2], [3]], ""),
        (None, ""),
        ("halves", ""),
    ],
    ids=str,
)
def test_refuses_other_shapes_and_dtypes(coefficients, message):
    with pytest.raises(ValueError, match=EXPECTED + message):
        checked(coefficients)


@pytest.mark.parametrize(
    "coefficients",
    [
        [[0.25, 0.5], [1.0, 2.0]],
        ((0.25, 0.5), (1.0, 2.0)),
        [[0.25, 0.5], tf.constant([1.0, 2.0], tf.float64)],
        np.array([[0.25, 0.5], [1.0, 2.0]]),
        np.array([[0.25, 0.5], [1.0, 2.0]], np.float32),
        tf.constant([[0.25, 0.5], [1.0, 2.0]], tf.float16),
        tf.Variable([[0.25, 0.5], [1.0, 2.0]]),
    ],
    ids=lambda coefficients: type(coefficients).__name__,
)
def test_everything_else_becomes_float64(coefficients):
    c_PR = checked(coefficients)
    assert c_PR.dtype == tf.float64
    assert c_PR.numpy().tolist() == [[0.25, 0.5], [1.0, 2.0]]


def test_a_list_keeps_the_precision_of_float64():
    assert checked([[0.1, 0.2], [0.3, 0.4]]).numpy().tolist() == [[0.1, 0.2], [0.3, 0.4]]


def test_a_shape_that_is_not_known_is_checked_when_it_runs():
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)])
    def step(coefficients):
        c_PR = checked(coefficients)
        assert c_PR.shape == [2, 2]
        return c_PR

    assert step(tf.ones([2, 2], tf.float64)).numpy().tolist() == [[1, 1], [1, 1]]
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(tf.ones([2, 3], tf.float64))


# ---- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_non_finite_coefficients(bad, in_graph):
    call = tf.function(checked) if in_graph else checked
    for place in ([0, 0], [1, 1]):
        coefficients = tf.tensor_scatter_nd_update(tf.ones([2, 2]), [place], [bad])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Returns\(\) returned .* finite"):
            call(coefficients, GRAM)
        # What belongs to a Gram matrix that is not finite does not matter.
        segment = place[0]
        spoilt = tf.tensor_scatter_nd_update(GRAM, [[segment, 0, 0]], [np.nan])
        np.testing.assert_array_equal(call(coefficients, spoilt), coefficients)
        spoilt = tf.tensor_scatter_nd_update(GRAM, [[1 - segment, 0, 0]], [np.nan])
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(coefficients, spoilt)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_through_aggregate(in_graph):
    def inverse_norms(gram):
        return 1 / tf.linalg.diag_part(gram)

    exchange = LocalExchange(Scheme(Returns(inverse_norms), 2))

    def step(replicas):
        return aggregate(replicas, exchange)

    call = tf.function(step, autograph=False) if in_graph else step
    first = [tf.constant([2.0, 0.0]), tf.constant([1.0])]
    (one, other) = call([first, [tf.constant([0.0, 4.0]), tf.constant([2.0])]])
    assert one.numpy().tolist() == [0.5, 0.25] and other.numpy().tolist() == [1.5]

    (one, other) = call([first, [tf.constant([np.nan, 4.0]), tf.constant([2.0])]])
    assert np.isnan(one).all() and other.numpy().tolist() == [1.5]

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Returns\(\) returned .* finite"):
        call([first, [tf.constant([0.0, 0.0]), tf.constant([2.0])]])


def test_good_coefficients_for_a_bad_gram_matrix_become_nan():
    gram = tf.constant([[[1.0, np.inf], [np.inf, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], tf.float64)
    c_SR = RuleApplication([0, 1]).coefficients(Returns(halves), gram, [0, 1])
    np.testing.assert_array_equal(c_SR, [[np.nan, np.nan], [0.5, 0.5]])


def test_this_packages_rules_are_not_looked_at():
    coefficients = tf.constant([[np.nan]])
    assert checked_coefficients(rules.Adasum(), coefficients, GRAM) is coefficients

    class Mine(rules.Adasum):
        pass

    with pytest.raises(ValueError, match="Mine"):
        checked_coefficients(Mine(), coefficients, GRAM)


@pytest.mark.parametrize("averaged", [2, 4])
def test_a_rule_above_means_is_looked_at(averaged):
    rule = Returns(lambda gram: np.nan * gram[:, 0, :])
    replicas = [[tf.constant([1.0, float(i)])] for i in range(8)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Returns\(\) returned .* finite"):
        aggregate(replicas, LocalExchange(Scheme(rule, 8, averaged)))


@pytest.mark.parametrize("levels", [{"averaged": 2}, {"radix_plan": (2, 2)}], ids=str)
def test_a_rule_in_levels_may_return_float32(levels):
    rule = Returns(lambda gram: tf.cast(halves(gram), tf.float32), works_in_levels=True)
    replicas = [[tf.constant([1.0, float(i)])] for i in range(4)]
    (combined,) = aggregate(replicas, LocalExchange(Scheme(rule, 4, **levels)))
    np.testing.assert_allclose(combined, [1.0, 1.5])


# ---- groups and state --------------------------------------------------------------------------


class Counts(rules.AggregationRule):
    """Keeps the sum of each group's traces, and the number of its steps."""

    def __init__(self, granularity="variable"):
        self.granularity = granularity

    def initial_state(self, segments, replicas):
        return {"traces": np.zeros([segments, 1], np.float32), "steps": np.zeros([segments], int)}

    def coefficients_and_state(self, gram, state):
        traces = tf.cast(tf.linalg.trace(gram)[:, None], tf.float32)
        return halves(gram), {"traces": state["traces"] + traces, "steps": state["steps"] + 1}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([0, 1, 2, 3], [[2.0], [4.0], [6.0], [8.0]]),
        ([0, 0, 0, 0], [[20.0]]),
        ([0, 1, 0, 2], [[8.0], [4.0], [8.0]]),
        ([1, 2, 0, 2], [[6.0], [2.0], [12.0]]),
    ],
    ids=str,
)
def test_the_state_is_that_of_the_groups(groups, expected):
    """Variables of 1, 2, 3 and 4 ones: traces of 2, 4, 6 and 8 on two replicas."""
    gradients = [[np.ones([size], np.float32) for size in (1, 2, 3, 4)]] * 2
    state = Counts().initial_state(max(groups) + 1, 2)
    tensors = {name: tf.constant(value) for name, value in state.items()}
    for bucket_bytes in (None, 1):
        application = RuleApplication(groups, tensors)
        aggregate(gradients, LocalExchange(Scheme(Counts(), 2)), bucket_bytes, application)
        assert application.state["traces"].numpy().tolist() == expected
        assert application.state["steps"].numpy().tolist() == [1] * len(expected)
        assert application.state["traces"].dtype == tf.float32
        assert application.state["steps"].dtype == tensors["steps"].dtype
        assert not tensors["traces"].numpy().any(), "what it was lent stays as it was"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_group_keeps_its_state(bad):
    gradients = [[np.ones([2], np.float32), np.ones([3], np.float32)] for _ in range(2)]
    gradients[1][0][1] = bad
    application = RuleApplication.of_first_step(Scheme(Counts(), 2), 2)
    aggregate(gradients, LocalExchange(Scheme(Counts(), 2)), application=application)
    assert application.state["traces"].numpy().tolist() == [[0.0], [6.0]]
    assert application.state["steps"].numpy().tolist() == [0, 1]


def test_a_group_without_gradients_keeps_its_state():
    application = RuleApplication.of_first_step(Scheme(Counts(), 2), 2)
    gradients = [[np.ones([2], np.float32), np.ones([0], np.float32)] for _ in range(2)]
    aggregate(gradients, LocalExchange(Scheme(Counts(), 2)), application=application)
    assert application.state["steps"].numpy().tolist() == [1, 0]


def test_groups_by_path_need_paths():
    scheme = Scheme(rules.Adasum({"a": "b"}), 2)
    with pytest.raises(ValueError, match=r"Adasum\(.*needs the variables' paths"):
        RuleApplication.of_first_step(scheme, 2)
    with pytest.raises(ValueError, match="needs the variables' paths"):
        aggregate([[tf.ones([2])]] * 2, LocalExchange(scheme))


# ---- the state of a user's rule ----------------------------------------------------------------


class Remembers(rules.AggregationRule):
    """Returns as initial and as next state what it was made with."""

    def __init__(self, initial=None, following=None):
        self.initial, self.following = initial, following

    def coefficients(self, gram):
        return tf.ones_like(gram[:, 0, :])

    def initial_state(self, segments, replicas):
        return {"count": np.zeros(segments)} if self.initial is None else self.initial(segments)

    def coefficients_and_state(self, gram, state):
        following = state if self.following is None else self.following(state)
        return self.coefficients(gram), following


@pytest.mark.parametrize(
    "initial",
    [
        lambda segments: [np.zeros(segments)],
        lambda segments: None,
        lambda segments: {"count": 0.0},
        lambda segments: {"count": np.zeros(1)},
        lambda segments: {"count": np.zeros(segments - 1)},  # R
        lambda segments: {"a/b": np.zeros(segments)},
        lambda segments: {"count": np.full(segments, "x")},
    ],
)
def test_refuses_other_initial_states(initial):
    with pytest.raises(ValueError, match=r"initial_state of the rule Remembers.* Received: "):
        Scheme.checked(Remembers(initial), 3)


@pytest.mark.parametrize(
    "following",
    [
        lambda state: None,
        lambda state: {},
        lambda state: {**state, "more": state["count"]},
        lambda state: {"count": tf.zeros([7, 2], tf.float64)},
    ],
)
def test_refuses_other_states_of_the_next_step(following):
    with pytest.raises(ValueError, match=r"The rule Remembers.* must return .*state.* Received: "):
        Scheme.checked(Remembers(following=following), 3)


@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
def test_a_state_keeps_its_dtype(dtype):
    rule = Remembers(following=lambda state: {"count": np.ones(2, dtype)})
    application = RuleApplication([0, 1], {"count": tf.zeros([2], tf.float64)})
    application.coefficients(rule, GRAM, [0, 1])
    assert application.state["count"].dtype == tf.float64
    assert application.state["count"].numpy().tolist() == [1, 1]


@pytest.mark.parametrize("wrong", ["layer", None, {".*": ""}])
def test_the_granularity_of_a_users_rule_is_checked(wrong):
    class Mine(Remembers):
        granularity = wrong

    with pytest.raises(ValueError, match="`granularity` must be"):
        Scheme.checked(Mine(), 3)
