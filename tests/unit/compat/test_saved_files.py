"""Files of models under our strategy: written at once."""

import os

import keras
import pytest
import tensorflow as tf
from support.two_variables import linear

from tf_adasum import atomic_files


class Full(keras.layers.Dense):
    def save_own_variables(self, store):
        raise OSError("No space left on device")


@pytest.fixture(params=["a.keras", "a.weights.h5"])
def path(request, tmp_path):
    return tmp_path / request.param


def write(model, path):
    model.save_weights(path) if path.suffix == ".h5" else model.save(path)


def test_what_fails_leaves_the_old_file(strategy, path):
    write(linear(strategy), path)
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        write(linear(strategy, layers=[Full(2)]), path)
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def test_without_our_strategy_keras_does_as_it_does(path, monkeypatch):
    monkeypatch.setattr(atomic_files, "replacing", None)  # would fail
    write(linear(tf.distribute.get_strategy()), path)
