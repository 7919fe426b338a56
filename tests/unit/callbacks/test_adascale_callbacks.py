"""GainTracker, ElasticScale and StopAtScaleInvariantStep: what they do in `fit`."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions

from tf_adasum import callbacks
from tf_adasum.optimizers import AdaScale, adascale

X = np.random.default_rng(0).standard_normal([24, 3]).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
STEPS_PER_EPOCH = 6  # of four rows each


def compiled(accumulated=2, learning_rate=0.01, wrap=lambda optimizer: optimizer):
    """A model with AdaScale; with `accumulated=1` each step is one small batch."""
    keras.utils.set_random_seed(0)
    with keras_versions.gradients_per_step(accumulated):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        if accumulated == 1:
            inner = keras.optimizers.SGD(learning_rate)
        else:
            inner = keras_versions.accumulating(keras.optimizers.SGD, learning_rate, accumulated)
        model.compile(wrap(AdaScale(inner)), "mse", run_eagerly=keras_versions.RUNS_EAGERLY)
    return model


def train(model, given, x=X, y=Y, **options):
    options = {"epochs": 100, "verbose": 0, "shuffle": False, **options}
    data = {"x": x} if isinstance(x, tf.data.Dataset) else {"x": x, "y": y, "batch_size": 4}
    return model.fit(**data, callbacks=given, **options)


# ---- GainTracker -------------------------------------------------------------------------------

NAMES = {
    "gain",
    "scale_invariant_steps",
    "effective_learning_rate",
    "gradient_variance",
    "gradient_squared_norm",
    "skipped_steps",
}


@pytest.mark.parametrize("verbose", [1, 2])
def test_logs_what_the_optimizer_has(capsys, verbose):
    """The progress bar shows one of the values, and other callbacks receive all of them."""
    tracker = callbacks.GainTracker()
    model = compiled(
        learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True)
    )
    history = train(model, [tracker], epochs=2, verbose=verbose).history
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


def test_between_measurements_steps_log_the_last_values_and_epochs_the_present_ones():
    tracker, model, seen, gains = callbacks.GainTracker(log_freq=10), compiled(), [], []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs.get("scale_invariant_steps")),
        on_epoch_end=lambda epoch, logs: gains.append(float(model.optimizer.gain)),
    )
    history = train(model, [tracker, look], epochs=4).history
    ten, twenty = (values["scale_invariant_steps"] for values in tracker.values)
    assert tracker.steps == [10, 20] and seen == [None] * 9 + [ten] * 10 + [twenty] * 5
    assert {len(values) for values in history.values()} == {4}
    assert history["gain"][2] == pytest.approx(gains[2])


def test_skipped_steps_are_counted():
    y = Y.copy()
    y[9] = np.nan
    history = train(compiled(), [callbacks.GainTracker()], epochs=1, y=y).history
    # The third call, and those after it: the weights are NaN by then.
    assert history["skipped_steps"] == [4 // keras_versions.calls_per_update(2)]
    assert np.isfinite(history["gain"]).all()


# ---- ElasticScale ------------------------------------------------------------------------------

SCHEDULE = {0: 2, 1: 4, 3: 8}  # batches of two, four and eight rows
SCALES = [2, 4, 4, 8]
STEPS = [12, 6, 6, 3]


def make_dataset(scale):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(int(scale), drop_remainder=True)


class Recorder(keras.callbacks.Callback):
    """Keeps the scale and the steps of each epoch, and the steps that callbacks expect."""

    def __init__(self):
        super().__init__()
        self.scales, self.steps, self.expected = [], [], []

    def on_epoch_end(self, epoch, logs=None):
        self.scales.append(adascale.find_adascale(self.model.optimizer, "Recorder").scale)
        self.steps.append(self.batch + 1)
        self.expected.append(self.params["steps"])

    def on_train_batch_end(self, batch, logs=None):
        self.batch = batch


def train_elastic(model, elastic, dataset=None, **options):
    recorder = Recorder()
    train(model, [elastic, recorder], dataset or elastic.dataset, **{"epochs": 4, **options})
    return recorder


@pytest.mark.keras3_only("Keras 2 cannot change the dataset")
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras_versions.LossScaleOptimizer])
def test_the_dataset_changes_with_the_scale(wrap):
    elastic, model = callbacks.ElasticScale(SCHEDULE, make_dataset), compiled(wrap=wrap)
    for _ in range(2):  # the same callback in the next `fit`
        recorder = train_elastic(model, elastic)
        assert recorder.scales == SCALES and recorder.steps == recorder.expected == STEPS
        assert elastic.scale == 8


@pytest.mark.skipif(not keras_versions.IS_KERAS_2, reason="Keras 3 can change the dataset")
def test_keras_2_cannot_change_the_dataset():
    with pytest.raises(ValueError, match="leave make_dataset out"):
        callbacks.ElasticScale(SCHEDULE, make_dataset)


# With steps_per_epoch, each epoch has two steps of more, so StopAtScaleInvariantStep counts wrong.
@pytest.mark.parametrize(
    ("make", "options", "steps", "expected"),
    [
        (make_dataset, {"initial_epoch": 1}, STEPS, STEPS),
        (make_dataset, {"initial_epoch": 2}, STEPS, STEPS),
        (make_dataset, {"initial_epoch": 3}, STEPS, STEPS),
        (make_dataset, {"validation_data": make_dataset(2)}, STEPS, STEPS),
        (
            lambda scale: make_dataset(scale).filter(lambda x, y: True),
            {},
            STEPS,
            [12, None, None, None],
        ),
        (None, {"dataset": make_dataset(2)}, [12] * 4, [12] * 4),
        (make_dataset, {"steps_per_epoch": 2}, [2] * 4, [2] * 4),
        (lambda scale: make_dataset(scale).repeat(), {"steps_per_epoch": 2}, [2] * 4, [2] * 4),
    ],
)
@pytest.mark.keras3_only("Keras 2 cannot change the dataset")
def test_steps_of_each_epoch(make, options, steps, expected):
    elastic = callbacks.ElasticScale(SCHEDULE, make)
    recorder = train_elastic(compiled(), elastic, **options)
    first = options.get("initial_epoch", 0)
    assert recorder.scales == SCALES[first:] and recorder.steps == steps[first:]
    assert recorder.expected[1:] == expected[first + 1 :]


@pytest.mark.keras3_only("Keras 2 cannot change the dataset")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": make_dataset(2)}, r"model.fit\(elastic.dataset, ...\)"),
        ({"class_weight": {0: 1.0, 1: 2.0}}, "without class_weight"),
    ],
    ids=["another dataset", "class weights"],
)
def test_data_that_cannot_change_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        train_elastic(compiled(), callbacks.ElasticScale(SCHEDULE, make_dataset), **options)


# ---- StopAtScaleInvariantStep ------------------------------------------------------------------


@pytest.mark.parametrize(("total", "steps"), [(6, 6), (7, 7), (6.5, 7), (0.1, 1), (13, 13)])
def test_a_scale_of_one_takes_as_many_steps_and_the_next_fit_takes_one(total, steps):
    """Keras can stop only after a step."""
    model, stop = compiled(accumulated=1), callbacks.StopAtScaleInvariantStep(total)
    history = train(model, [stop])
    assert model.optimizer.iterations.numpy() == steps
    assert len(history.epoch) == math.ceil(steps / STEPS_PER_EPOCH)
    train(model, [stop])
    assert model.optimizer.iterations.numpy() == steps + 1


@pytest.mark.keras3_only("Keras 2 cannot change the dataset")
def test_a_function_of_the_epoch():
    elastic = callbacks.ElasticScale(lambda epoch: 2.0 + epoch, make_dataset)
    assert elastic.scale == 2.0
    recorder = train_elastic(compiled(), elastic, epochs=3)
    assert recorder.scales == [2, 3, 4] and recorder.steps == [12, 8, 6]
