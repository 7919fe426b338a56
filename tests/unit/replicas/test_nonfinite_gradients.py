"""Finding gradients that are not finite, and skipping the step or raising an error."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.replicas import nonfinite_gradients

NAN, INF = float("nan"), float("inf")
GOOD = [1.0, -3e38]


@pytest.fixture(scope="module")
def strategies():
    return {
        action: tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], on_nonfinite=action)
        for action in nonfinite_gradients.ACTIONS
    }


def slices(values):
    return tf.IndexedSlices(tf.constant(values)[None], tf.constant([0]), tf.constant([4, 2]))


@pytest.mark.parametrize("kind", [tf.constant, slices])
@pytest.mark.parametrize(
    ("gradients", "first"),
    [
        ([GOOD, GOOD], 0),
        ([[NAN, 1.0], GOOD], 1),
        ([GOOD, [1.0, INF]], 2),
        ([GOOD, [-INF, 1.0], [NAN, NAN]], 2),
        ([np.array([1.0, INF], np.float16)], 1),
        ([tf.constant([1.0, INF], tf.bfloat16).numpy()], 1),
        ([np.array([1e300, -1e300])], 0),
    ],
)
def test_the_first_gradient_that_is_not_finite_is_found(strategies, kind, gradients, first):
    strategy = strategies["skip"]
    find = tf.function(
        lambda: strategy.run(lambda: strategy._nonfinite.find([kind(each) for each in gradients]))
    )
    np.testing.assert_array_equal(find(), [first])


@pytest.mark.parametrize(
    ("action", "is_disabled"), [("propagate", True), ("skip", False), ("raise", False)]
)
def test_gradients_are_left_alone_if_nothing_has_to_be_done(strategies, action, is_disabled):
    nonfinite = strategies[action]._nonfinite

    def in_replica():
        before = nonfinite.is_disabled
        with pytest.raises(ArithmeticError), nonfinite.already_checked():
            within = nonfinite.is_disabled
            raise ArithmeticError
        return before, within, nonfinite.is_disabled

    assert strategies[action].skipped_steps == 0
    assert action == "skip" or strategies[action].extended.created_variables() == []
    # Nested optimizers need no check.
    assert strategies[action].run(in_replica) == (is_disabled, True, is_disabled)


def raising(strategy):
    """A function that raises in a graph, like a training step."""
    found, paths = tf.constant([2.0]), ["layer/kernel", "layer/bias"]
    return tf.function(
        lambda: strategy.run(
            lambda: strategy._nonfinite.skip_or_raise(found, paths) or tf.constant(0)
        )
    )


def test_the_error_names_worker_replica_and_variable(strategies):
    step = raising(strategies["raise"])
    received = "Received on worker 0, its replica 0: layer/bias. No replica did this step"
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(received)):
        step()
    with pytest.raises(FloatingPointError) as caught:  # in `fit`
        strategies["raise"]._nonfinite.raising_plain_errors(step)()
    message = str(caught.value)
    assert message.startswith(nonfinite_gradients.MESSAGE) and received in message
    assert message.endswith(nonfinite_gradients.MESSAGE_END)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_other_errors_stay_as_they_are(strategies):
    @strategies["raise"]._nonfinite.raising_plain_errors
    def step(error):
        """A step."""
        raise error

    assert step.__name__ == "step" and step.__doc__ == "A step."
    for error in (tf.errors.InvalidArgumentError(None, None, "another"), ValueError("value")):
        with pytest.raises(type(error)) as caught:
            step(error)
        assert caught.value is error


@pytest.mark.parametrize("action", ["propagate", "skip"])
def test_functions_stay_unchanged_if_nothing_raises(strategies, action):
    function = raising(strategies["raise"])
    assert strategies[action]._nonfinite.raising_plain_errors(function) is function
