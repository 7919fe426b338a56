"""OrthogonalityTracker on one replica: what it logs.

What it measures is tested on several replicas, in tests/multi_worker/test_aggregation.py.
"""

import keras
import numpy as np
import pytest

import tf_adasum
from tf_adasum import callbacks
from tf_adasum.compat import keras as keras_compat

X = np.random.default_rng(0).standard_normal([12, 3])


def logs_of(tracker, rule="adasum", x=X, fits=1, **options):
    """The logs of the last one of some calls of `fit`."""
    with tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule).scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, name="head")])
        model.compile(optimizer="sgd", loss="mse")
    options = {"batch_size": 2, "callbacks": [tracker], "verbose": 0, **options}
    return [model.fit(x, np.ones([len(x), 1]), **options).history for _ in range(fits)][-1]


@pytest.mark.parametrize("rule", ["adasum", "mean"])
def test_one_replica_is_orthogonal(rule):
    tracker = callbacks.OrthogonalityTracker(log_freq=2)
    logs = logs_of(tracker, rule, epochs=2)
    assert tracker.steps == [2, 4, 6, 8, 10, 12]
    assert tracker.paths == [keras_compat.path_of(own) for own in tracker.model.trainable_variables]
    np.testing.assert_allclose(tracker.values, np.ones([6, 3]), rtol=1e-12)
    names = {"loss", "orthogonality", *(f"orthogonality/{path}" for path in tracker.paths)}
    assert set(logs) == names and logs["orthogonality"] == pytest.approx([1, 1])


def test_steps_are_counted_over_several_fits():
    tracker = callbacks.OrthogonalityTracker(log_freq=4, per_variable=False)
    assert set(logs_of(tracker, fits=2)) == {"loss", "orthogonality"}
    assert tracker.steps == [4, 8, 12] and len(tracker.values) == 3


def test_an_epoch_without_a_measurement_logs_nan():
    assert np.isnan(logs_of(callbacks.OrthogonalityTracker(log_freq=7))["orthogonality"]).all()


def test_variables_without_gradients_are_nan():
    tracker = callbacks.OrthogonalityTracker()
    logs_of(tracker, x=np.zeros([4, 3]))
    kernel, bias, overall = np.transpose(tracker.values)
    assert np.isnan(kernel).all() and (bias == 1).all() and (overall == 1).all()
