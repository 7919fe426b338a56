"""GainTracker: what it logs, keeps and draws."""

import csv

import keras
import numpy as np
import pytest
from support import stacks

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


def compiled(wrap=lambda optimizer: optimizer, learning_rate=0.05):
    keras.utils.set_random_seed(0)
    with stacks.gradients_per_step(2):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        optimizer = AdaScale(stacks.accumulating(keras.optimizers.SGD, learning_rate, 2))
        model.compile(wrap(optimizer), "mse", run_eagerly=stacks.RUNS_EAGERLY)
    return model


def train(model, given, epochs=2, y=X[:, :1], **options):
    options = {"verbose": 0, "shuffle": False, **options}
    return model.fit(X, y, batch_size=4, callbacks=given, epochs=epochs, **options).history


@pytest.mark.parametrize("every", [0, True, 2.0])
def test_refuses_another_distance(every):
    with pytest.raises(ValueError, match=f"`every` must be .* Received: every={every!r}"):
        callbacks.GainTracker(every=every)


def test_refuses_another_optimizer():
    model = compiled()
    for make in (keras.optimizers.SGD, lambda: stacks.LossScaleOptimizer(keras.optimizers.SGD())):
        with stacks.gradients_per_step(2):
            model.compile(make(), "mse")
        message = r"GainTracker needs a model compiled with tf_adasum.optimizers.AdaScale\(optimize"
        with pytest.raises(ValueError, match=message):
            train(model, [callbacks.GainTracker()])


def test_logs_what_the_optimizer_has(tmp_path):
    tracker = callbacks.GainTracker()
    logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    model = compiled(
        learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True)
    )
    history = train(model, [tracker, logger])
    optimizer = model.optimizer
    assert set(history) == NAMES | {"loss"}
    assert tracker.steps == list(range(1, 13)) and len(tracker.values) == 12
    assert all(set(values) == NAMES for values in tracker.values)
    for name in NAMES:
        assert tracker.values[-1][name] == float(getattr(optimizer, name))
    for name in NAMES - {"gain"}:
        assert history[name] == [tracker.values[5][name], tracker.values[11][name]]
    gains = [values["gain"] for values in tracker.values]
    np.testing.assert_allclose(history["gain"], [np.mean(gains[:6]), np.mean(gains[6:])])
    calls = stacks.calls_per_update(2)
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


def test_the_progress_bar_shows_the_gain_alone(capsys):
    history = train(compiled(), [callbacks.GainTracker()], epochs=1, verbose=2)
    shown = capsys.readouterr().out
    assert {name for name in NAMES if f" - {name}: " in shown} == {"gain"}
    assert NAMES < history.keys()


def test_counts_steps_that_were_left_out():
    y = X[:, :1].copy()
    y[9] = np.nan
    history = train(compiled(), [callbacks.GainTracker()], epochs=1, y=y)
    # The third call, and those after it: the weights are NaN by then.
    assert history["skipped_steps"] == [4 // stacks.calls_per_update(2)]
    assert np.isfinite(history["gain"]).all()


def test_within_a_loss_scale_optimizer():
    model = compiled(stacks.LossScaleOptimizer)
    history = train(model, [callbacks.GainTracker()])
    tau = float(model.optimizer.inner_optimizer.scale_invariant_steps)
    assert history["scale_invariant_steps"][-1] == tau > 6


def test_the_next_fit_goes_on():
    tracker, model = callbacks.GainTracker(every=6), compiled()
    for steps in ([6], [6, 12]):
        train(model, [tracker], epochs=1)
        assert tracker.steps == steps


def test_every_epoch_has_values():
    history = train(compiled(), [callbacks.GainTracker(every=10)], epochs=3)
    assert {len(values) for values in history.values()} == {3}


def test_the_gain_of_an_epoch_without_a_measurement():
    tracker, model, gains = callbacks.GainTracker(every=10), compiled(), []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: gains.append(float(model.optimizer.gain))
    )
    history = train(model, [tracker, look], epochs=3)
    assert tracker.steps == [10]
    assert history["gain"][-1] == pytest.approx(gains[-1])


def test_draws_the_gain_over_the_scale_invariant_step():
    pytest.importorskip("matplotlib")
    tracker = callbacks.GainTracker()
    train(compiled(), [tracker])
    (axes,) = tracker.plot().axes
    gains = [values["gain"] for values in tracker.values]
    taus = [values["scale_invariant_steps"] for values in tracker.values]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), np.transpose([taus, gains]))
    assert "gain" in axes.get_ylabel() and "step" in axes.get_xlabel()


def test_is_saved_with_its_arguments():
    tracker = callbacks.GainTracker(every=3)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tracker))
    assert isinstance(again, callbacks.GainTracker) and again.every == 3
