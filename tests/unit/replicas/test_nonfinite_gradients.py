"""Finding gradients that are not finite, and what happens instead of the step."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.replicas import nonfinite_gradients

NAN, INF = float("nan"), float("inf")
GOOD = [1.0, -3e38]


def made(action):
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], on_nonfinite=action)


@pytest.fixture(scope="module")
def strategies():
    return {action: made(action) for action in nonfinite_gradients.ACTIONS}


def slices(values):
    return tf.IndexedSlices(tf.constant([values]), tf.constant([0]), tf.constant([4, 2]))


@pytest.mark.parametrize("kind", [tf.constant, slices])
@pytest.mark.parametrize(
    ("gradients", "first"),
    [
        ([GOOD, GOOD], 0),
        ([[NAN, 1.0], GOOD], 1),
        ([GOOD, [1.0, INF]], 2),
        ([GOOD, [-INF, 1.0], [NAN, NAN]], 2),
    ],
)
def test_the_first_gradient_that_is_not_finite_is_found(strategies, kind, gradients, first):
    strategy = strategies["skip"]
    find = tf.function(
        lambda: strategy.run(lambda: strategy.nonfinite.find([kind(each) for each in gradients]))
    )
    np.testing.assert_array_equal(find(), [first])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_every_dtype_is_looked_at(strategies, dtype):
    strategy = strategies["skip"]
    for value, first in ((1.0, 0), (INF, 1)):
        gradient = tf.constant([value], dtype)
        found = strategy.run(lambda gradient=gradient: strategy.nonfinite.find([gradient]))
        np.testing.assert_array_equal(found, [first])


def test_nothing_is_asked_where_nothing_is_to_be_done(strategies):
    def in_replica(strategy):
        nonfinite = strategy.nonfinite
        before = nonfinite.leaves_be
        with nonfinite.passed():
            within = nonfinite.leaves_be
        try:
            with nonfinite.passed():
                raise ArithmeticError
        except ArithmeticError:
            return before, within, nonfinite.leaves_be

    seen = {
        action: strategy.run(in_replica, args=(strategy,))
        for action, strategy in strategies.items()
    }
    assert seen["propagate"] == (True, True, True)
    assert seen["skip"] == seen["raise"] == (False, True, False), "nested optimizers do not ask"


def test_steps_that_are_left_out_are_counted_and_warned_of_once():
    strategy = made("skip")
    assert strategy.skipped_steps == 0
    leave_out = tf.function(
        lambda: strategy.run(lambda: strategy.nonfinite.leave_out(tf.constant([1.0]), ["a"]))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy.nonfinite.warn_once()  # of nothing
    leave_out()
    leave_out()
    assert strategy.skipped_steps == 2 and isinstance(strategy.skipped_steps, int)
    with pytest.warns(UserWarning, match=r"^2 steps were skipped"):
        strategy.nonfinite.warn_once()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy.nonfinite.warn_once()


def test_no_strategy_but_a_skipping_one_has_a_counter(strategies):
    assert [strategies[action].skipped_steps for action in ("propagate", "raise")] == [0, 0]
    assert strategies["raise"].extended.created_variables() == []


def raising(strategy):
    """What raises in a graph, as a step does."""
    found, paths = tf.constant([2.0]), ["layer/kernel", "layer/bias"]
    return tf.function(
        lambda: strategy.run(lambda: strategy.nonfinite.leave_out(found, paths) or tf.constant(0))
    )


def test_the_error_names_worker_replica_and_variable(strategies):
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"Received on worker 0, its replica 0: layer/bias\. No replica did this step",
    ):
        raising(strategies["raise"])()


def test_in_fit_it_is_a_floating_point_error(strategies):
    step = strategies["raise"].nonfinite.raising_plainly(raising(strategies["raise"]))
    with pytest.raises(FloatingPointError) as caught:
        step()
    assert str(caught.value) == (
        f"{nonfinite_gradients.MESSAGE} Received on worker 0, its replica 0: layer/bias. "
        f"{nonfinite_gradients.MESSAGE_END}"
    )
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_other_errors_stay_as_they_are(strategies):
    @strategies["raise"].nonfinite.raising_plainly
    def step(error):
        """A step."""
        raise error

    assert step.__name__ == "step" and step.__doc__ == "A step."
    for error in (tf.errors.InvalidArgumentError(None, None, "another"), ValueError("value")):
        with pytest.raises(type(error)) as caught:
            step(error)
        assert caught.value is error


@pytest.mark.parametrize("action", ["propagate", "skip"])
def test_functions_stay_themselves_where_nothing_raises(strategies, action):
    function = raising(strategies["raise"])
    assert strategies[action].nonfinite.raising_plainly(function) is function
