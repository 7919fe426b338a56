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


@pytest.fixture(scope="module")
def strategies():
    return {
        rule: tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
        for rule in ("adasum", "mean")
    }


def compiled(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, name="head")])
        model.compile(optimizer="sgd", loss="mse")
    return model


def train(model, given, x=X, **options):
    y = np.ones([len(x), 1])
    return model.fit(x, y, batch_size=2, callbacks=given, verbose=0, **options).history


@pytest.mark.parametrize("rule", ["adasum", "mean"])
def test_one_replica_is_orthogonal(strategies, rule):
    tracker = callbacks.OrthogonalityTracker(log_freq=2)
    model = compiled(strategies[rule])
    history = train(model, [tracker], epochs=2)
    assert tracker.steps == [2, 4, 6, 8, 10, 12]
    assert tracker.paths == [keras_compat.path_of(own) for own in model.trainable_variables]
    np.testing.assert_allclose(tracker.values, np.ones([6, 3]), rtol=1e-12)
    names = {"loss", "orthogonality", *(f"orthogonality/{path}" for path in tracker.paths)}
    assert set(history) == names and history["orthogonality"] == pytest.approx([1, 1])


def test_steps_are_counted_over_several_fits(strategies):
    tracker = callbacks.OrthogonalityTracker(log_freq=4, per_variable=False)
    model = compiled(strategies["adasum"])
    histories = [train(model, [tracker]) for _ in range(2)]
    assert tracker.steps == [4, 8, 12] and len(tracker.values) == 3
    assert set(histories[0]) == {"loss", "orthogonality"}


def test_an_epoch_without_a_measurement_logs_nan(strategies):
    history = train(compiled(strategies["adasum"]), [callbacks.OrthogonalityTracker(log_freq=7)])
    assert np.isnan(history["orthogonality"]).all()


def test_variables_without_gradients_are_nan(strategies):
    tracker = callbacks.OrthogonalityTracker()
    train(compiled(strategies["adasum"]), [tracker], x=np.zeros([4, 3]))
    kernel, bias, overall = np.transpose(tracker.values)
    assert np.isnan(kernel).all() and (bias == 1).all() and (overall == 1).all()
