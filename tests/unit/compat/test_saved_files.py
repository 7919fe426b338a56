"""Files of models under our strategy: written at once."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_adasum import atomic_files


def model_of(strategy, value=0.0):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    model.set_weights([np.full(weight.shape, value) for weight in model.get_weights()])
    return model


def write(model, path):
    model.save_weights(path) if str(path).endswith(".weights.h5") else model.save(path)


def first_weight(strategy, path):
    if str(path).endswith(".weights.h5"):
        model = model_of(strategy)
        model.load_weights(path)
    else:
        with strategy.scope():
            model = keras.saving.load_model(path, compile=False)
    return model.get_weights()[0][0, 0]


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5"])
class TestFiles:
    def test_what_fails_leaves_the_old_file(self, strategy, name, tmp_path):
        path = tmp_path / name
        write(model_of(strategy, value=1.0), path)

        class Full(keras.layers.Dense):
            def save_own_variables(self, store):
                raise OSError("No space left on device")

        with strategy.scope():
            model = keras.Sequential([keras.layers.Input([3]), Full(2)])
        with pytest.raises(OSError, match="No space left"):
            write(model, path)
        assert first_weight(strategy, path) == 1.0 and os.listdir(tmp_path) == [name]

    def test_without_our_strategy_keras_does_as_it_does(self, name, tmp_path, monkeypatch):
        monkeypatch.setattr(atomic_files, "replacing", None)  # would fail
        write(model_of(tf.distribute.get_strategy(), value=1.0), tmp_path / name)
