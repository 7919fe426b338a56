"""Arguments of callbacks, the models that they need, and their configuration."""

import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions
from support.two_variables import linear

from tf_adasum import callbacks


@keras.saving.register_keras_serializable("tests")
def schedule_of_epoch(epoch):
    return 2.0 + epoch


@keras.saving.register_keras_serializable("tests")
def make_dataset(scale):
    return tf.data.Dataset.range(8).batch(int(scale))


DATASETS = None if keras_versions.IS_KERAS_2 else make_dataset  # Keras 2 cannot change the dataset


@pytest.mark.parametrize(
    "callback", [callbacks.GainTracker, callbacks.OrthogonalityTracker, callbacks.ReplicaCheck]
)
def test_the_old_name_of_the_frequency_warns(callback):
    with pytest.warns(DeprecationWarning, match="The argument `every` is deprecated. Use `"):
        old = callback.from_config({"every": 3})
    assert old.get_config() == callback(3).get_config()
    with pytest.warns(DeprecationWarning) as caught:
        callback(every=3)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("callback", "needs"),
    [
        (callbacks.GainTracker(), "compiled with tf_adasum.optimizers.AdaScale"),
        (callbacks.StopAtScaleInvariantStep(9), "compiled with tf_adasum.optimizers.AdaScale"),
        (callbacks.ElasticScale({0: 1}), "compiled with tf_adasum.optimizers.AdaScale"),
        (callbacks.OrthogonalityTracker(), "under an AdasumMirroredStrategy"),
        (callbacks.StragglerReport(), "under an AdasumMirroredStrategy"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_models_are_refused(callback, needs):
    sgd = keras_versions.LossScaleOptimizer(keras.optimizers.SGD())
    model = linear(tf.distribute.get_strategy(), sgd)
    with pytest.raises(ValueError, match=f"{type(callback).__name__} needs a model .*{needs}"):
        model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0, callbacks=[callback])


@pytest.mark.parametrize(
    "callback",
    [
        callbacks.GainTracker(log_freq=3),
        callbacks.OrthogonalityTracker(log_freq=3, per_variable=False),
        callbacks.ReplicaCheck(7),
        callbacks.StopAtScaleInvariantStep(1000.5),
        callbacks.StragglerReport(),
        callbacks.ElasticScale({0: 2, 3: 4.5}),
        callbacks.ElasticScale(schedule_of_epoch, DATASETS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_are_saved_with_their_arguments(callback):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(callback)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(callback)
    for name in (each for each in vars(callback) if each[0] != "_" and each != "dataset"):
        assert getattr(again, name) == getattr(callback, name), name


@pytest.mark.parametrize(
    "make", [keras.callbacks.EarlyStopping, callbacks.ReplicaCheck, callbacks.OrthogonalityTracker]
)
def test_callbacks_that_all_workers_need_do_not_run_on_the_first_alone(make):
    with pytest.raises(ValueError, match=f"^{make.__name__} has to run on all workers"):
        callbacks.OnFirstWorker(make())


def test_the_check_refuses_another_strategy_of_several_replicas():
    check = callbacks.ReplicaCheck()
    other = types.SimpleNamespace(num_replicas_in_sync=2)
    check.set_model(types.SimpleNamespace(distribute_strategy=other))
    with pytest.raises(ValueError, match="Received: a model of SimpleNamespace"):
        check.on_train_begin()
    other.num_replicas_in_sync = 1
    check.on_train_begin()
    check.on_epoch_end(0)
