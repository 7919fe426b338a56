"""Finding gradients that are not finite, and skipping the step or raising an error."""

import numpy as np
import pytest
import tensorflow as tf

import tf_adasum

NAN, INF = float("nan"), float("inf")
GOOD = [1.0, -3e38]


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
def test_the_first_gradient_that_is_not_finite_is_found(strategy, kind, gradients, first):
    find = tf.function(
        lambda: strategy.run(lambda: strategy._nonfinite.find([kind(each) for each in gradients]))
    )
    np.testing.assert_array_equal(find(), [first])


def test_the_error_names_worker_replica_and_variable():
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], on_nonfinite="raise")
    nonfinite, found = strategy._nonfinite, tf.constant([2.0])
    paths = ["layer/kernel", "layer/bias"]
    step = tf.function(
        lambda: strategy.run(lambda: nonfinite.skip_or_raise(found, paths) or tf.constant(0))
    )
    received = r"Received on worker 0, its replica 0: layer/bias\. No replica did this step"
    with pytest.raises(tf.errors.InvalidArgumentError, match=received):
        step()
    with pytest.raises(FloatingPointError, match=received):  # in `fit`
        nonfinite.raising_plain_errors(step)()
