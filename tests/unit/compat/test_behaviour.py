"""What the two packages of compat do to Keras, without a strategy and on one replica.

tests/multi_worker/test_keras.py and test_optimizers.py have several replicas.
"""

from unittest import mock

import pytest

pytest.importorskip("keras", minversion="3")  # what Keras 3 does that tf_adasum corrects

import keras
import numpy as np
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from support.two_variables import linear

from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat


def test_another_keras_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"KERAS_BACKEND=tensorflow .*Received: backend 'jax'"):
        keras_compat.install()


def test_inert_without_a_strategy():
    keras_compat.install()
    tensorflow_compat.hooks.install()
    assert keras_loss.scale_loss_for_distribution(3.0) == 3.0
    variable = keras.Variable([1.0, 2.0])
    pairs = [(tf.constant([0.5, 0.25]), variable)]
    keras.optimizers.SGD(1.0).apply(*zip(*pairs, strict=True))
    assert variable.numpy().tolist() == [0.5, 1.75]


def test_the_marker_survives_a_merge():
    marker = tensorflow_compat.GradientOptions(bytes_per_pack=5)
    merged = marker.merge(tensorflow_compat.CommunicationOptions(timeout_seconds=2.0))
    assert isinstance(merged, tensorflow_compat.GradientOptions)
    assert (merged.bytes_per_pack, merged.timeout_seconds) == (5, 2.0)


def test_the_variables_to_update_may_be_a_generator(strategy):
    variable = keras.Variable([3.0])
    keras.optimizers.SGD(1.0).apply([tf.ones([1])], (each for each in [variable]))
    assert variable.numpy() == [2]


def test_optimizers_of_a_model_are_found_in_lists_and_dictionaries():
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    optimizers = [keras.optimizers.SGD(0.1) for _ in range(4)]
    model.compile(optimizers[0], "mse")
    model.second, model.others = optimizers[1], [{"third": optimizers[2]}, (optimizers[3],)]
    assert {*map(id, keras_compat.optimizers_of(model))} == {*map(id, optimizers)}


@pytest.mark.parametrize("unknown", [False, True])
def test_a_dataset_without_a_batch_is_refused(strategy, unknown):
    model = linear(strategy)
    data = tf.data.Dataset.from_tensor_slices((np.ones([4, 3]), np.ones([4, 1])))
    data = data.batch(8, drop_remainder=True)
    data = data.filter(lambda *rows: True) if unknown else data
    with pytest.raises(ValueError, match="The dataset has no batch"):
        model.fit(data, verbose=0)


def test_a_step_of_the_user_runs_without_xla_and_says_so(strategy):
    class OwnStep(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = linear(strategy, cls=OwnStep, jit_compile=True)
    with pytest.warns(UserWarning, match="without XLA, because it is the model's own step"):
        model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)


def test_workers_agree_on_one_seed_in_an_epoch(strategy):
    """Keras also asks for an iterator at the end of an epoch, and does not use it."""
    model = linear(strategy)
    with mock.patch.object(strategy._seeds, "shared_if_needed", return_value=None) as shared:
        model.fit(np.ones([8, 3]), np.ones([8, 1]), batch_size=4, epochs=3, verbose=0)
    assert shared.call_count == 3
