"""Files of models under our strategy: written at once."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_adasum import atomic_files, schedules


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


def test_safe_mode_loads_our_schedule(strategy, tmp_path):
    """For our optimizers see `test_wrappers.py`."""
    rows = np.ones([4, 3]), np.ones([4, 2])
    decay = keras.optimizers.schedules.CosineDecay(0.1, 100)
    model, rate = model_of(strategy), schedules.LinearScalingWarmup(decay, scale=2, total_steps=100)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(*rows, batch_size=2, verbose=0)
    model.save(tmp_path / "a.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "a.keras", safe_mode=True)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.optimizer.iterations.numpy() == 2
    loaded.fit(*rows, batch_size=2, verbose=0)
