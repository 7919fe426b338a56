"""GainTracker: what it logs and keeps."""

import csv

import keras
import numpy as np
import pytest
from support import keras_versions

from tf_adasum import callbacks
from tf_adasum.optimizers import AdaScale

NAMES = {
    "gain",
    "scale_invariant_steps",
    "effective_learning_rate",
    "gradient_variance",
    "gradient_squared_norm",
    "skipped_steps",
}
X = np.random.default_rng(0).standard_normal([24, 3]).astype("float32")


def compiled(learning_rate=0.05):
    keras.utils.set_random_seed(0)
    with keras_versions.gradients_per_step(2):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        optimizer = AdaScale(keras_versions.accumulating(keras.optimizers.SGD, learning_rate, 2))
        model.compile(optimizer, "mse", run_eagerly=keras_versions.RUNS_EAGERLY)
    return model


def train(model, given, epochs=2, y=X[:, :1], **options):
    options = {"verbose": 0, "shuffle": False, **options}
    return model.fit(X, y, batch_size=4, callbacks=given, epochs=epochs, **options).history


def test_logs_what_the_optimizer_has(tmp_path, capsys):
    tracker = callbacks.GainTracker()
    logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    model = compiled(
        learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True)
    )
    history = train(model, [tracker, logger], verbose=2)
    shown = capsys.readouterr().out
    assert {name for name in NAMES if f" - {name}: " in shown} == {"gain"}
    assert set(history) == NAMES | {"loss"}
    assert tracker.steps == list(range(1, 13)) and len(tracker.values) == 12
    assert all(set(values) == NAMES for values in tracker.values)
    for name in NAMES:
        assert tracker.values[-1][name] == float(getattr(model.optimizer, name))
    for name in NAMES - {"gain"}:
        assert history[name] == [tracker.values[5][name], tracker.values[11][name]]
    gains = [values["gain"] for values in tracker.values]
    np.testing.assert_allclose(history["gain"], [np.mean(gains[:6]), np.mean(gains[6:])])
    calls = keras_versions.calls_per_update(2)
    if calls == 2:  # an update is every other step
        assert gains[0] == 1 and gains[1] == gains[2] > 1
    taken = gains[calls - 1 :: calls]
    assert tracker.values[-1]["scale_invariant_steps"] == pytest.approx(sum(taken))
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    for name in NAMES:
        assert [float(row[name]) for row in rows] == history[name]


def test_the_logs_of_a_step_have_the_last_values():
    seen = []
    tracker = callbacks.GainTracker(every=4)
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs.get("scale_invariant_steps"))
    )
    train(compiled(), [tracker, look])
    assert tracker.steps == [4, 8, 12]
    four, eight, twelve = (values["scale_invariant_steps"] for values in tracker.values)
    assert seen == [None] * 3 + [four] * 4 + [eight] * 4 + [twelve]


def test_skipped_steps_are_counted():
    y = X[:, :1].copy()
    y[9] = np.nan
    history = train(compiled(), [callbacks.GainTracker()], epochs=1, y=y)
    # The third call, and those after it: the weights are NaN by then.
    assert history["skipped_steps"] == [4 // keras_versions.calls_per_update(2)]
    assert np.isfinite(history["gain"]).all()


def test_the_gain_of_an_epoch_without_a_measurement():
    tracker, model, gains = callbacks.GainTracker(every=10), compiled(), []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: gains.append(float(model.optimizer.gain))
    )
    history = train(model, [tracker, look], epochs=3)
    assert tracker.steps == [10] and {len(values) for values in history.values()} == {3}
    assert history["gain"][-1] == pytest.approx(gains[-1])
