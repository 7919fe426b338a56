"""ElasticScale: S, the dataset and the progress bar change when an epoch begins."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions

from tf_adasum import callbacks
from tf_adasum.optimizers import AdaScale

X = np.random.default_rng(0).standard_normal([48, 3]).astype("float32")
Y = (X[:, :1] > 0).astype("int32")
SCHEDULE = {0: 2, 1: 4, 3: 8}  # batches of 4, 8 and 16 rows
SCALES = [2, 4, 4, 8]
STEPS = [12, 6, 6, 3]


def make_dataset(scale):
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    return rows.batch(2 * int(scale), drop_remainder=True)


def compiled(wrap=lambda optimizer: optimizer):
    keras.utils.set_random_seed(0)
    with keras_versions.gradients_per_step(2):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        inner = keras_versions.accumulating(keras.optimizers.SGD, 0.01, 2)
        model.compile(wrap(AdaScale(inner)), "mse", run_eagerly=keras_versions.RUNS_EAGERLY)
    return model


class Recorder(keras.callbacks.Callback):
    """Keeps the scale and the steps of each epoch, and the steps that callbacks expect."""

    def __init__(self):
        super().__init__()
        self.scales, self.steps, self.expected = [], [], []

    def on_epoch_end(self, epoch, logs=None):
        optimizer = self.model.optimizer
        while not isinstance(optimizer, AdaScale):
            optimizer = optimizer.inner_optimizer
        self.scales.append(optimizer.scale)
        self.steps.append(self.batch + 1)
        self.expected.append(self.params["steps"])

    def on_train_batch_end(self, batch, logs=None):
        self.batch = batch


def train(model, elastic, dataset=None, epochs=4, **options):
    recorder = Recorder()
    dataset = elastic.dataset if dataset is None else dataset
    options = {"verbose": 0, "shuffle": False, **options}
    model.fit(dataset, epochs=epochs, callbacks=[elastic, recorder], **options)
    return recorder


def test_a_bad_scale_in_a_later_epoch_is_refused():
    elastic = callbacks.ElasticScale(lambda epoch: 2 if epoch == 0 else -1)
    with pytest.raises(ValueError, match=r"1 or more\. Received: scale=-1"):
        train(compiled(), elastic, make_dataset(2))


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras_versions.LossScaleOptimizer])
def test_the_dataset_changes_with_the_scale(wrap):
    elastic, model = callbacks.ElasticScale(SCHEDULE, make_dataset), compiled(wrap)
    for _ in range(2):  # the same callback in the next `fit`
        recorder = train(model, elastic)
        assert recorder.scales == SCALES and recorder.steps == recorder.expected == STEPS
        assert elastic.scale == 8


def of_unknown_length(scale):
    return make_dataset(scale).filter(lambda x, y: True)


# With steps_per_epoch, each epoch has two steps of more, so StopAtScaleInvariantStep counts wrong.
@pytest.mark.parametrize(
    ("make", "options", "steps", "expected"),
    [
        (make_dataset, {"initial_epoch": 1}, STEPS, STEPS),
        (make_dataset, {"initial_epoch": 2}, STEPS, STEPS),
        (make_dataset, {"initial_epoch": 3}, STEPS, STEPS),
        (make_dataset, {"validation_data": make_dataset(2)}, STEPS, STEPS),
        (of_unknown_length, {}, STEPS, [12, None, None, None]),
        (None, {"dataset": make_dataset(2)}, [12] * 4, [12] * 4),
        (make_dataset, {"steps_per_epoch": 2}, [2] * 4, [2] * 4),
        (lambda scale: make_dataset(scale).repeat(), {"steps_per_epoch": 2}, [2] * 4, [2] * 4),
    ],
)
def test_steps_of_each_epoch(make, options, steps, expected):
    elastic = callbacks.ElasticScale(SCHEDULE, make)
    recorder = train(compiled(), elastic, **options)
    first = options.get("initial_epoch", 0)
    assert recorder.scales == SCALES[first:] and recorder.steps == steps[first:]
    assert recorder.expected[1:] == expected[first + 1 :]


def test_a_function_of_the_epoch():
    elastic = callbacks.ElasticScale(lambda epoch: 2.0 + epoch, make_dataset)
    assert elastic.scale == 2.0
    recorder = train(compiled(), elastic, epochs=3)
    assert recorder.scales == [2, 3, 4] and recorder.steps == [12, 8, 6]


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
        train(compiled(), callbacks.ElasticScale(SCHEDULE, make_dataset), **options)


def test_the_progress_bar_shows_the_steps_of_each_epoch(capsys):
    train(compiled(), callbacks.ElasticScale(SCHEDULE, make_dataset), verbose=2)
    bars = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert [bar.split(" ")[0] for bar in bars] == ["12/12", "6/6", "6/6", "3/3"]


def test_with_a_total_of_scale_invariant_steps():
    elastic, model = callbacks.ElasticScale(SCHEDULE, make_dataset), compiled()
    stop = callbacks.StopAtScaleInvariantStep(14)
    model.fit(elastic.dataset, epochs=99, callbacks=[elastic, stop], verbose=0)
    tau = float(model.optimizer.scale_invariant_steps)
    assert 14 <= tau < 14 + float(model.optimizer.gain)
