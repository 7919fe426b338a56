"""Files of models under our strategy: written at once, refused by name, loaded in safe mode."""

import os
import re
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions

import tf_adasum
from tf_adasum import atomic_files
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import LAMB, AdaScale, DeltaAdasum
from tf_adasum.schedules import LinearScalingWarmup


@pytest.fixture(scope="module")
def strategy():
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])


@pytest.fixture
def renamed(monkeypatch):
    """The pairs of paths of all files that are renamed."""
    pairs, replace = [], os.replace

    def recording(old, new):
        pairs.append((str(old), str(new)))
        replace(old, new)

    monkeypatch.setattr(atomic_files.os, "replace", recording)
    return pairs


def model_of(strategy, optimizer="sgd", value=0.0):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
        model.compile(optimizer() if callable(optimizer) else optimizer, "mse")
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


def test_a_file_that_only_worker_0_has_is_named(strategy, tmp_path, monkeypatch):
    model, path = model_of(strategy), str(tmp_path / "trial" / "checkpoint.weights.h5")
    with pytest.raises(FileNotFoundError) as alone:
        model.load_weights(path)
    assert "TFA-607" not in str(alone.value)
    monkeypatch.setattr(strategy.workers, "rank", 1)
    with pytest.raises(FileNotFoundError, match="Worker 1 has no such file") as caught:
        model.load_weights(path)
    assert caught.value.filename == path and "TFA-607" in str(caught.value)


H5 = pytest.param("new/a.h5", marks=pytest.mark.keras3_only("Keras 2 saves .h5 under its own name"))


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", H5])
def test_is_written_beside_and_renamed(strategy, name, tmp_path, renamed):
    path = tmp_path / name
    for value in 1.0, 2.0:
        write(model_of(strategy, value=value), path)
        assert first_weight(strategy, path) == value
    assert [new for _, new in renamed] == [str(path)] * 2
    for old, _ in renamed:
        assert os.path.dirname(old) == str(path.parent) and old.endswith(path.name)
    assert os.listdir(path.parent) == [path.name]


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

    def test_cut_off_anywhere_it_is_refused_by_its_name(self, strategy, name, tmp_path):
        path = tmp_path / name
        write(model_of(strategy, value=1.0), path)
        data = path.read_bytes()
        for size in [*range(0, len(data), 311), len(data) - 1]:
            path.write_bytes(data[:size])
            with pytest.raises((OSError, ValueError), match=re.escape(str(path))):
                first_weight(strategy, path)

    def test_without_our_strategy_keras_does_as_it_does(self, name, tmp_path, monkeypatch):
        monkeypatch.setattr(atomic_files, "replacing", None)  # would fail
        write(model_of(tf.distribute.get_strategy(), value=1.0), tmp_path / name)


def test_a_changed_archive_is_refused_by_its_name(strategy, tmp_path):
    path = tmp_path / "a.keras"
    write(model_of(strategy), path)
    with zipfile.ZipFile(path) as archive:
        position = archive.getinfo("model.weights.h5").header_offset + 1000
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match=r"(?s)a\.keras cannot be read.*CRC"), strategy.scope():
        keras.saving.load_model(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdaScale(keras.optimizers.SGD(0.1)),
        lambda: DeltaAdasum(keras.optimizers.Adam(0.1), local_steps=2),
        pytest.param(
            lambda: LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"]),
            marks=keras_versions.needs_state_of_lamb,
        ),
        lambda: keras.optimizers.SGD(
            LinearScalingWarmup(
                keras.optimizers.schedules.CosineDecay(0.1, 100), scale=2, total_steps=100
            )
        ),
    ],
    ids=["AdaScale", "DeltaAdasum", "LAMB", "LinearScalingWarmup"],
)
def test_safe_mode_loads_what_we_save(make, tmp_path):
    rule = "mean" if isinstance(make(), AdaScale) else "adasum"
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rule)
    model, rows = model_of(strategy, make), (np.ones([4, 3]), np.ones([4, 2]))
    model.fit(*rows, batch_size=2, verbose=0)
    model.save(tmp_path / "a.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "a.keras", safe_mode=True)
    assert type(loaded.optimizer) is type(model.optimizer)
    own, others = map(keras_compat.all_variables, (loaded.optimizer, model.optimizer))
    for variable, other in zip(own, others, strict=True):
        path = keras_compat.path_of(variable)
        np.testing.assert_array_equal(variable.numpy(), other.numpy(), path)
    loaded.fit(*rows, batch_size=2, verbose=0)
