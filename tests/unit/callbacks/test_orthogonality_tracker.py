"""OrthogonalityTracker on one replica: what it logs.

What it measures is tested on several replicas, in tests/multi_worker/test_aggregation.py.
"""

import numpy as np
import pytest
from support.two_variables import linear

import tf_adasum
from tf_adasum import callbacks
from tf_adasum.compat import keras as keras_compat

X = np.random.default_rng(0).standard_normal([12, 3])


def logs_of(tracker, rule="adasum", x=X, epochs=1):
    model = linear(tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule))
    options = {"batch_size": 2, "epochs": epochs, "callbacks": [tracker], "verbose": 0}
    return model.fit(x, np.ones([len(x), 1]), **options).history


@pytest.mark.parametrize("rule", ["adasum", "mean"])
def test_one_replica_is_orthogonal(rule):
    tracker = callbacks.OrthogonalityTracker(log_freq=2)
    logs = logs_of(tracker, rule, epochs=2)
    assert tracker.steps == [2, 4, 6, 8, 10, 12]
    assert tracker.paths == [keras_compat.path_of(own) for own in tracker.model.trainable_variables]
    np.testing.assert_allclose(tracker.values, np.ones([6, 3]), rtol=1e-12)
    names = {"loss", "orthogonality", *(f"orthogonality/{path}" for path in tracker.paths)}
    assert set(logs) == names and logs["orthogonality"] == pytest.approx([1, 1])


def test_an_epoch_without_a_measurement_logs_nan():
    tracker = callbacks.OrthogonalityTracker(log_freq=7, per_variable=False)
    logs = logs_of(tracker)
    assert set(logs) == {"loss", "orthogonality"} and np.isnan(logs["orthogonality"]).all()


def test_variables_without_gradients_are_nan():
    tracker = callbacks.OrthogonalityTracker()
    logs_of(tracker, x=np.zeros([4, 3]))
    kernel, bias, overall = np.transpose(tracker.values)
    assert np.isnan(kernel).all() and (bias == 1).all() and (overall == 1).all()
