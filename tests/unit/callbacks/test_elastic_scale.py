"""ElasticScale: S, the dataset and the progress bar change when an epoch begins."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import stacks

from tf_adasum import callbacks
from tf_adasum.optimizers import AdaScale

X = np.random.default_rng(0).standard_normal([48, 3]).astype("float32")
Y = (X[:, :1] > 0).astype("int32")
SCHEDULE = {0: 2, 1: 4, 3: 8}  # batches of 4, 8 and 16 rows
STEPS = [12, 6, 6, 3]


@keras.saving.register_keras_serializable("tests")
def make_dataset(scale):
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    return rows.batch(2 * int(scale), drop_remainder=True)


@keras.saving.register_keras_serializable("tests")
def schedule_of_epoch(epoch):
    return 2.0 + epoch


def compiled(wrap=lambda optimizer: optimizer):
    keras.utils.set_random_seed(0)
    with stacks.gradients_per_step(2):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        inner = stacks.accumulating(keras.optimizers.SGD, 0.01, 2)
        model.compile(wrap(AdaScale(inner)), "mse", run_eagerly=stacks.RUNS_EAGERLY)
    return model


class Recorder(keras.callbacks.Callback):
    """The scale and the steps of each epoch; and the steps that all callbacks are told of."""

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


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({}, r"for epoch 0.* Received: schedule=\{\}"),
        ({1: 4}, r"for epoch 0.* Received: schedule=\{1: 4\}"),
        ({0: 0}, "1 or more. Received: scale=0"),
        ({0: 1, 2: math.nan}, "1 or more. Received: scale=nan"),
        pytest.param(lambda epoch: 0.5, "1 or more. Received: scale=0.5", id="function"),
        ([1, 2], r"a dict .* or a function .* Received: schedule=\[1, 2\]"),
        (None, "Received: schedule=None"),
    ],
    ids=str,
)
def test_refuses_other_schedules(schedule, message):
    with pytest.raises(ValueError, match=message):
        callbacks.ElasticScale(schedule)


def test_refuses_a_scale_in_a_later_epoch():
    elastic = callbacks.ElasticScale(lambda epoch: 2 if epoch == 0 else -1)
    with pytest.raises(ValueError, match=r"1 or more\. Received: scale=-1"):
        train(compiled(), elastic, make_dataset(2))


def test_refuses_another_optimizer():
    model = compiled()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="ElasticScale needs a model compiled with"):
        train(model, callbacks.ElasticScale({0: 1}), make_dataset(2))


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, stacks.LossScaleOptimizer])
def test_the_dataset_changes_with_the_scale(wrap):
    elastic = callbacks.ElasticScale(SCHEDULE, make_dataset)
    recorder = train(compiled(wrap), elastic)
    assert recorder.scales == [2, 4, 4, 8]
    assert recorder.steps == recorder.expected == STEPS
    assert elastic.scale == 8


def test_a_function_of_the_epoch():
    elastic = callbacks.ElasticScale(schedule_of_epoch, make_dataset)
    assert elastic.scale == 2.0
    recorder = train(compiled(), elastic, epochs=3)
    assert recorder.scales == [2, 3, 4] and recorder.steps == [12, 8, 6]


def test_the_same_callback_in_the_next_fit():
    elastic, model = callbacks.ElasticScale(SCHEDULE, make_dataset), compiled()
    for _ in range(2):
        recorder = train(model, elastic)
        assert recorder.scales == [2, 4, 4, 8] and recorder.steps == STEPS


@pytest.mark.parametrize("initial", [1, 2, 3])
def test_a_resumed_fit(initial):
    elastic = callbacks.ElasticScale(SCHEDULE, make_dataset)
    recorder = train(compiled(), elastic, initial_epoch=initial)
    assert recorder.scales == [2, 4, 4, 8][initial:] and recorder.steps == STEPS[initial:]


def test_validation_does_not_take_the_dataset():
    elastic = callbacks.ElasticScale(SCHEDULE, make_dataset)
    recorder = train(compiled(), elastic, validation_data=elastic.dataset)
    assert recorder.scales == [2, 4, 4, 8] and recorder.steps == STEPS


def test_datasets_of_unknown_length():
    elastic = callbacks.ElasticScale(
        SCHEDULE, lambda scale: make_dataset(scale).filter(lambda x, y: True)
    )
    recorder = train(compiled(), elastic)
    assert recorder.scales == [2, 4, 4, 8] and recorder.steps == STEPS
    assert recorder.expected[1:] == [None] * 3


def test_without_a_dataset_the_data_are_left_alone():
    elastic = callbacks.ElasticScale(SCHEDULE)
    assert elastic.dataset is None
    recorder = train(compiled(), elastic, make_dataset(2))
    assert recorder.scales == [2, 4, 4, 8] and recorder.steps == [12] * 4


def test_another_dataset_is_refused():
    elastic = callbacks.ElasticScale(SCHEDULE, make_dataset)
    with pytest.raises(ValueError, match=r"model.fit\(elastic.dataset, ...\)"):
        train(compiled(), elastic, make_dataset(2))


def test_class_weights_are_refused():
    elastic = callbacks.ElasticScale(SCHEDULE, make_dataset)
    with pytest.raises(ValueError, match="without class_weight"):
        train(compiled(), elastic, class_weight={0: 1.0, 1: 2.0})


def test_the_progress_bar_shows_the_steps_of_each_epoch(capsys):
    train(compiled(), callbacks.ElasticScale(SCHEDULE, make_dataset), verbose=2)
    bars = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert [bar.split(" ")[0] for bar in bars] == ["12/12", "6/6", "6/6", "3/3"]


@pytest.mark.parametrize("repeated", [False, True], ids=["longer", "endless"])
def test_steps_per_epoch_is_what_callbacks_are_told(repeated):
    """Two steps of more: the steps are right, but not what StopAtScaleInvariantStep counts with."""

    def make(scale):
        return make_dataset(scale).repeat() if repeated else make_dataset(scale)

    elastic = callbacks.ElasticScale(SCHEDULE, make)
    recorder = train(compiled(), elastic, steps_per_epoch=2)
    assert recorder.scales == [2, 4, 4, 8] and recorder.steps == [2] * 4
    assert recorder.expected == [2] * 4


def test_with_a_total_of_scale_invariant_steps():
    elastic, model = callbacks.ElasticScale(SCHEDULE, make_dataset), compiled()
    stop = callbacks.StopAtScaleInvariantStep(14)
    model.fit(elastic.dataset, epochs=99, callbacks=[elastic, stop], verbose=0)
    tau = float(model.optimizer.scale_invariant_steps)
    assert 14 <= tau < 14 + float(model.optimizer.gain)


@pytest.mark.parametrize("schedule", [SCHEDULE, schedule_of_epoch], ids=["dict", "function"])
@pytest.mark.parametrize("make", [None, make_dataset], ids=["no dataset", "dataset"])
def test_is_saved_with_its_arguments(schedule, make):
    elastic = callbacks.ElasticScale(schedule, make)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(elastic)))
    again = keras.saving.deserialize_keras_object(config)
    assert again.schedule == schedule and again.make_dataset == make
    assert (again.dataset is None) == (make is None)
