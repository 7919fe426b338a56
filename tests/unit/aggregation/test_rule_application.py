"""Coefficients and states that a rule returns, above all a rule that the user wrote.

Shape letters: S segments, P groups, R replicas.
"""

import numpy as np
import pytest
import tensorflow as tf
from support.scheme_oracle import Returns

from tf_adasum.aggregation import LocalReductionPlanner, RuleApplication, Scheme, aggregate
from tf_adasum.aggregation.rules import Adasum, AggregationRule

# ---- numbers -----------------------------------------------------------------------------------

NOT_FINITE = r"Returns\(\) returned .* finite"


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_non_finite_coefficients_are_refused_only_for_finite_gradients(in_graph):
    planner = LocalReductionPlanner(Scheme(Returns(lambda gram: 1 / tf.linalg.diag_part(gram)), 2))

    def step(replicas):
        return aggregate(replicas, planner)

    call = tf.function(step, autograph=False) if in_graph else step
    good = [tf.constant([2.0, 0.0]), tf.constant([1.0])]
    (one, other) = call([good, [tf.constant([0.0, 4.0]), tf.constant([2.0])]])
    assert one.numpy().tolist() == [0.5, 0.25] and other.numpy().tolist() == [1.5]

    bad = tf.constant([np.nan, 4.0])
    (one, other) = call([good, [bad, tf.constant([2.0])]])
    assert np.isnan(one).all() and other.numpy().tolist() == [1.5]

    zeros = tf.zeros([2]), tf.zeros([1])
    for second in ([zeros[0], good[1]], [good[0], zeros[1]], [bad, zeros[1]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_FINITE):
            call([good, second])


@pytest.mark.parametrize("levels", [{"local_reduction_size": 2}, {"radix_plan": (2, 2)}], ids=str)
def test_a_rule_in_levels_is_checked_and_may_return_float32(levels):
    class InLevels(Returns):
        works_in_levels = True

    def combined(factor):
        rule = InLevels(lambda gram: factor * tf.ones_like(gram[:, 0, :], tf.float32) / 2)
        replicas = [[tf.constant([1.0, float(i)])] for i in range(4)]
        (result,) = aggregate(replicas, LocalReductionPlanner(Scheme(rule, 4, **levels)))
        return result

    np.testing.assert_allclose(combined(1), [1.0, 1.5])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"InLevels\(\) returned .* finite"):
        combined(np.nan)


# ---- groups and state --------------------------------------------------------------------------


class Counts(AggregationRule):
    """Keeps the sum of each group's traces, and the number of its steps."""

    def initial_state(self, segments, replicas):
        return {"traces": np.zeros([segments, 1], np.float32), "steps": np.zeros([segments], int)}

    def coefficients_and_state(self, gram, state):
        traces = tf.cast(tf.linalg.trace(gram)[:, None], tf.float32)
        halves = tf.ones_like(gram[:, 0, :]) / 2
        return halves, {"traces": state["traces"] + traces, "steps": state["steps"] + 1}


@pytest.mark.parametrize("bucket_bytes", [None, 1])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
@pytest.mark.parametrize(
    ("groups", "traces"),
    [
        ([0, 1, 2, 3, 4], [2, 4, 6, 8, 0]),
        ([0, 0, 0, 0, 0], [20]),
        ([0, 1, 0, 2, 3], [8, 4, 8, 0]),
        ([1, 2, 0, 2, 3], [6, 2, 12, 0]),
    ],
    ids=str,
)
def test_groups_have_a_state_unless_they_are_bad_or_have_no_gradients(
    groups, traces, bad, bucket_bytes
):
    """Variables of 1, 2, 3, 4 and 0 ones: traces of 2, 4, 6, 8 and 0 on two replicas."""
    gradients = [[np.ones([size], np.float32) for size in (1, 2, 3, 4, 0)] for _ in range(2)]
    if bad is not None:
        gradients[1][2][1] = bad
        traces = [0 if group == groups[2] else trace for group, trace in enumerate(traces)]
    state = Counts().initial_state(max(groups) + 1, 2)
    tensors = {name: tf.constant(value) for name, value in state.items()}
    application = RuleApplication(groups, tensors)
    combined = aggregate(
        gradients, LocalReductionPlanner(Scheme(Counts(), 2)), bucket_bytes, application
    )
    for group, own in zip(groups[:4], combined, strict=False):
        wanted = np.nan if bad is not None and group == groups[2] else 1
        np.testing.assert_array_equal(own, np.full(own.shape, wanted))
    assert application.state["traces"].numpy().ravel().tolist() == traces
    assert application.state["steps"].numpy().tolist() == [int(trace > 0) for trace in traces]
    assert application.state["traces"].dtype == tf.float32
    assert not tensors["traces"].numpy().any(), "the state that was passed stays as it was"


def test_groups_by_path_need_paths():
    scheme = Scheme(Adasum({"a": "b"}), 2)
    with pytest.raises(ValueError, match=r"Adasum\(.*needs the variables' paths"):
        aggregate([[tf.ones([2])]] * 2, LocalReductionPlanner(scheme))


# ---- shapes, dtypes and states -----------------------------------------------------------------


class Remembers(AggregationRule):
    """Returns, as initial and as next state, the results of its two functions."""

    def __init__(self, initial=np.zeros, following=lambda state: state):
        self.initial, self.following = initial, following

    def coefficients(self, gram):
        return tf.ones_like(gram[:, 0, :])

    def initial_state(self, segments, replicas):
        initial = self.initial(segments)
        return {"count": initial} if isinstance(initial, np.ndarray) else initial

    def coefficients_and_state(self, gram, state):
        return self.coefficients(gram), self.following(state)


RETURNED = r"The rule Returns\(\) must return .* shape \[S, R\] = \(5, 4\).* Received: "
INITIAL = r"initial_state of the rule Remembers.* Received: "
FOLLOWING = r"The rule Remembers.* must return .*state.* Received: "


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Returns(lambda gram: gram[:, 0, :3]), rf"{RETURNED}shape \(5, 3\)"),
        (Returns(lambda gram: gram[:4, 0]), rf"{RETURNED}shape \(4, 4\)"),
        (Returns(lambda gram: 1.0), rf"{RETURNED}shape \(\)"),
        (Returns(lambda gram: tf.cast(gram[:, 0], tf.int32)), f"{RETURNED}dtype int32"),
        (Returns(lambda gram: [[1, 2], [3]]), RETURNED),
        (Returns(lambda gram: None), RETURNED),
        (Remembers(lambda segments: None), INITIAL),
        (Remembers(lambda segments: {"count": 0.0}), INITIAL),
        (Remembers(lambda segments: np.zeros(segments - 1)), INITIAL),  # R
        (Remembers(lambda segments: {"a/b": np.zeros(segments)}), INITIAL),
        (Remembers(lambda segments: np.full(segments, "x")), INITIAL),
        (Remembers(following=lambda state: None), FOLLOWING),
        (Remembers(following=lambda state: {}), FOLLOWING),
        (Remembers(following=lambda state: {**state, "more": state["count"]}), FOLLOWING),
        (Remembers(following=lambda state: {"count": tf.zeros([7, 2])}), FOLLOWING),
    ],
)
def test_refuses_other_results(rule, message):
    with pytest.raises(ValueError, match=message):
        Scheme.from_arguments(rule, 8, local_reduction_size=2)
