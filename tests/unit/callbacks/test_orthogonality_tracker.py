"""OrthogonalityTracker on one replica: what it refuses, logs and draws.

What it measures is tested on several replicas, in tests/multi_worker/test_aggregation.py.
"""

import csv

import keras
import numpy as np
import pytest

import tf_adasum
from tf_adasum import callbacks
from tf_adasum.compat import keras as keras_compat


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


def train(model, given, **options):
    x = np.random.default_rng(0).standard_normal([12, 3])
    return model.fit(x, x[:, :1], batch_size=2, callbacks=given, verbose=0, **options).history


@pytest.mark.parametrize("every", [0, -1, 1.0, True, None, "2"])
def test_refuses_another_distance(every):
    with pytest.raises(ValueError, match=f"`every` must be .* Received: every={every!r}"):
        callbacks.OrthogonalityTracker(every=every)


def test_refuses_models_without_inner_products(strategies):
    with pytest.raises(ValueError, match="another rule than 'mean'"):
        train(compiled(strategies["mean"]), [callbacks.OrthogonalityTracker()])
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    with pytest.raises(ValueError, match="compiled under an AdasumMirroredStrategy"):
        train(model, [callbacks.OrthogonalityTracker()])


def test_one_replica_is_orthogonal_and_loggers_see_it(strategies, tmp_path):
    tracker = callbacks.OrthogonalityTracker(every=2)
    logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    model = compiled(strategies["adasum"])
    history = train(model, [tracker, logger], epochs=2)
    assert tracker.steps == [2, 4, 6, 8, 10, 12]
    assert tracker.paths == [keras_compat.path_of(own) for own in model.trainable_variables]
    np.testing.assert_allclose(tracker.values, np.ones([6, 3]), rtol=1e-12)
    names = {"loss", "orthogonality", *(f"orthogonality/{path}" for path in tracker.paths)}
    assert set(history) == names
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) >= names | {"epoch"}  # and columns for a validation
    assert [float(row["orthogonality"]) for row in rows] == [1, 1]


def test_steps_are_counted_over_several_fits(strategies):
    tracker = callbacks.OrthogonalityTracker(every=4, per_variable=False)
    model = compiled(strategies["adasum"])
    histories = [train(model, [tracker]) for _ in range(2)]
    assert tracker.steps == [4, 8, 12] and len(tracker.values) == 3
    assert set(histories[0]) == {"loss", "orthogonality"}


def test_an_epoch_without_a_measurement_logs_nan(strategies):
    history = train(compiled(strategies["adasum"]), [callbacks.OrthogonalityTracker(every=7)])
    assert np.isnan(history["orthogonality"]).all()


def test_variables_without_gradients_are_nan(strategies):
    with strategies["adasum"].scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    tracker = callbacks.OrthogonalityTracker()
    x = np.zeros([4, 3])
    model.fit(x, np.ones([4, 1]), batch_size=2, callbacks=[tracker], verbose=0)
    kernel, bias, overall = np.transpose(tracker.values)
    assert np.isnan(kernel).all() and (bias == 1).all() and (overall == 1).all()


def test_draws_a_row_for_each_variable(strategies):
    figure = pytest.importorskip("matplotlib.figure")
    tracker = callbacks.OrthogonalityTracker()
    with pytest.raises(RuntimeError, match="after fit"):
        tracker.plot()
    train(compiled(strategies["adasum"]), [tracker])
    drawn = tracker.plot()
    assert isinstance(drawn, figure.Figure)
    axes = drawn.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [*tracker.paths, "all variables"]
    assert axes.images[0].get_array().shape == (3, 6)
    given = figure.Figure().subplots()
    assert tracker.plot(given) is given.figure and given.images


def test_is_saved_with_its_arguments():
    tracker = callbacks.OrthogonalityTracker(every=3, per_variable=False)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tracker))
    assert (again.every, again.per_variable) == (3, False)
