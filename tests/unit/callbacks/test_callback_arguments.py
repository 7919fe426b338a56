"""Arguments of callbacks, the models that they need, and their configuration."""

import json
import math
import types

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


DATASETS = None if keras_versions.IS_KERAS_2 else make_dataset  # Keras 2 cannot change the dataset


def train(callback, optimizer="sgd"):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0, callbacks=[callback])


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: callbacks.GainTracker(0), "int of 1 or more.* Received: log_freq=0"),
        (lambda: callbacks.OrthogonalityTracker(1.0), "Received: log_freq=1.0"),
        (lambda: callbacks.ReplicaCheck(True), "or 'epoch'. Received: check_freq=True"),
        (lambda: callbacks.StopAtScaleInvariantStep(0), "must be a positive .* Received: total=0"),
        (lambda: callbacks.ElasticScale({1: 4}), r"for epoch 0.* Received: schedule=\{1: 4\}"),
        (lambda: callbacks.ElasticScale({0: 1, 2: math.nan}), "1 or more. Received: scale=nan"),
        (lambda: callbacks.ElasticScale(lambda epoch: 0.5), "1 or more. Received: scale=0.5"),
        (lambda: callbacks.ElasticScale([1, 2]), r"a dict .* Received: schedule=\[1, 2\]"),
        (lambda: callbacks.ElasticScale({0: 2}, lambda scale: scale), "which returned 2|Keras 2"),
        (lambda: callbacks.OnFirstWorker(print), r"must be a keras\.callbacks\.Callback"),
    ],
)
def test_other_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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
        (callbacks.ElasticScale(schedule_of_epoch, DATASETS), ["schedule", "make_dataset"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_are_saved_with_their_arguments(callback, names):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(callback)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(callback)
    for name in names:
        assert getattr(again, name) == getattr(callback, name)


BACKUP = [] if keras_versions.IS_KERAS_2 else [callbacks.BackupAndRestore("backup")]


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.EarlyStopping(),
        keras.callbacks.BackupAndRestore("backup"),
        callbacks.ReplicaCheck(),
        callbacks.OrthogonalityTracker(),
        *BACKUP,
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_all_workers_need_do_not_run_on_the_first_alone(callback):
    with pytest.raises(ValueError, match=f"^{type(callback).__name__} has to run on all workers"):
        callbacks.OnFirstWorker(callback)


def test_the_check_refuses_another_strategy_of_several_replicas():
    check = callbacks.ReplicaCheck()
    other = types.SimpleNamespace(num_replicas_in_sync=2)
    check.set_model(types.SimpleNamespace(distribute_strategy=other))
    with pytest.raises(ValueError, match="Received: a model of SimpleNamespace"):
        check.on_train_begin()
    other.num_replicas_in_sync = 1
    check.on_train_begin()
    check.on_epoch_end(0)
