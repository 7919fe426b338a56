"""Arguments of callbacks, the models that they need, and their configuration."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions

from tf_adasum import callbacks


@keras.saving.register_keras_serializable("tests")
def schedule_of_epoch(epoch):
    return 2.0 + epoch


@keras.saving.register_keras_serializable("tests")
def make_dataset(scale):
    return tf.data.Dataset.range(8).batch(int(scale))


def train(callback, optimizer="sgd"):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0, callbacks=[callback])


@pytest.mark.parametrize(
    "callback", [callbacks.GainTracker, callbacks.OrthogonalityTracker, callbacks.ReplicaCheck]
)
@pytest.mark.parametrize("freq", [0, -1, 1.0, True, None, "2"])
def test_another_distance_is_refused(callback, freq):
    message = rf"_freq` must be an int of 1 or more.* Received: \w+_freq={freq!r}"
    with pytest.raises(ValueError, match=message):
        callback(freq)


@pytest.mark.parametrize(
    "callback", [callbacks.GainTracker, callbacks.OrthogonalityTracker, callbacks.ReplicaCheck]
)
def test_the_old_name_of_the_frequency_warns(callback):
    with pytest.warns(
        DeprecationWarning, match="The argument `every` is deprecated. Use `"
    ) as caught:
        old = callback.from_config({"every": 3})
    assert old.get_config() == callback(3).get_config()
    with pytest.warns(DeprecationWarning) as caught:
        callback(every=3)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("total", [0, -1, math.nan, math.inf, True, None, "9"], ids=str)
def test_another_total_than_a_number_of_steps_is_refused(total):
    with pytest.raises(ValueError, match=f"must be a positive .* Received: total={total!r}"):
        callbacks.StopAtScaleInvariantStep(total)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({}, r"for epoch 0.* Received: schedule=\{\}"),
        ({1: 4}, r"for epoch 0.* Received: schedule=\{1: 4\}"),
        ({0: 0}, "1 or more. Received: scale=0"),
        ({0: 1, 2: math.nan}, "1 or more. Received: scale=nan"),
        pytest.param(lambda epoch: 0.5, "1 or more. Received: scale=0.5", id="function"),
        ([1, 2], r"a dict .* or a function .* Received: schedule=\[1, 2\]"),
    ],
    ids=str,
)
def test_other_schedules_are_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        callbacks.ElasticScale(schedule)


def test_another_dataset_is_refused():
    with pytest.raises(ValueError, match=r"returns a tf\.data\.Dataset.* which returned 2"):
        callbacks.ElasticScale({0: 2}, lambda scale: scale)


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras_versions.LossScaleOptimizer])
@pytest.mark.parametrize(
    "callback",
    [
        callbacks.GainTracker(),
        callbacks.StopAtScaleInvariantStep(9),
        callbacks.ElasticScale({0: 1}),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_optimizers_without_adascale_are_refused(callback, wrap):
    name = type(callback).__name__
    message = rf"{name} needs a model compiled with tf_adasum.optimizers.AdaScale\(optimizer\)"
    with pytest.raises(ValueError, match=message):
        train(callback, wrap(keras.optimizers.SGD()))


@pytest.mark.parametrize("name", ["OrthogonalityTracker", "StragglerReport"])
def test_models_of_another_strategy_are_refused(name):
    message = f"{name} needs a model that was (compiled|created) under an AdasumMirroredStrategy"
    with pytest.raises(ValueError, match=message):
        train(getattr(callbacks, name)())


def test_workers_compare_the_arguments_of_callbacks_that_wait_for_all():
    """With another frequency on each worker, they would wait for each other."""
    assert callbacks.ReplicaCheck(7).settings_to_compare == "ReplicaCheck(check_freq=7)"
    assert callbacks.StragglerReport().settings_to_compare.startswith("StragglerReport(")


@pytest.mark.parametrize(
    ("callback", "names"),
    [
        (callbacks.GainTracker(log_freq=3), ["log_freq"]),
        (
            callbacks.OrthogonalityTracker(log_freq=3, per_variable=False),
            ["log_freq", "per_variable"],
        ),
        (callbacks.ReplicaCheck(7), ["check_freq", "settings_to_compare"]),
        (callbacks.StopAtScaleInvariantStep(1000.5), ["total"]),
        (callbacks.StragglerReport(), ["settings_to_compare"]),
        (callbacks.ElasticScale({0: 2, 3: 4.5}), ["schedule", "make_dataset", "dataset"]),
        (callbacks.ElasticScale(schedule_of_epoch, make_dataset), ["schedule", "make_dataset"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_are_saved_with_their_arguments(callback, names):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(callback)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(callback)
    for name in names:
        assert getattr(again, name) == getattr(callback, name)
