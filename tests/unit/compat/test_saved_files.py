"""Files of models under our strategy: written at once, refused by name, loaded in safe mode."""

import os
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import stacks

import tf_adasum
from tf_adasum import atomic_files
from tf_adasum.aggregation import rules
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import LAMB, AdaScale, DeltaAdasum
from tf_adasum.schedules import LinearScalingWarmup


@pytest.fixture(scope="module")
def strategy():
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])


def model_of(strategy, optimizer="sgd", value=0.0):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
        model.compile(optimizer() if callable(optimizer) else optimizer, "mse")
    model.set_weights([np.full(weight.shape, value) for weight in model.get_weights()])
    return model


def write(model, path):
    model.save(path) if str(path).endswith(".keras") else model.save_weights(path)


def test_a_file_that_only_worker_0_has_is_named(strategy, tmp_path, monkeypatch):
    model, path = model_of(strategy), str(tmp_path / "trial" / "checkpoint.weights.h5")
    with pytest.raises(FileNotFoundError) as alone:
        model.load_weights(path)
    assert "TFA-607" not in str(alone.value)
    monkeypatch.setattr(strategy.workers, "rank", 1)
    with pytest.raises(FileNotFoundError, match="Worker 1 has no such file") as caught:
        model.load_weights(path)
    assert caught.value.filename == path and "TFA-607" in str(caught.value)


def first_weight(strategy, path):
    if str(path).endswith(".keras"):
        with strategy.scope():
            return keras.saving.load_model(path).get_weights()[0][0, 0]
    model = model_of(strategy)
    model.load_weights(path)
    return model.get_weights()[0][0, 0]


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5"])
class TestFiles:
    def test_is_written_beside_and_renamed(self, strategy, name, tmp_path, monkeypatch):
        path, seen, replace = tmp_path / name, [], os.replace
        monkeypatch.setattr(
            atomic_files.os, "replace", lambda *pair: (seen.append(pair), replace(*pair))
        )
        for value in 1.0, 2.0:
            write(model_of(strategy, value=value), path)
            assert first_weight(strategy, path) == value
        assert [new for _, new in seen] == [str(path)] * 2
        assert all(os.path.dirname(old) == str(tmp_path) and old.endswith(name) for old, _ in seen)
        assert os.listdir(tmp_path) == [name]

    def test_what_fails_leaves_the_old_file(self, strategy, name, tmp_path, monkeypatch):
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
        model = model_of(strategy, value=1.0)
        write(model, path)
        data = path.read_bytes()
        for size in [*range(0, len(data), 311), len(data) - 1]:
            path.write_bytes(data[:size])
            with pytest.raises((OSError, ValueError)) as raised, strategy.scope():
                model.load_weights(path) if name == "a.weights.h5" else keras.saving.load_model(
                    path
                )
            assert str(path) in str(raised.value), size

    def test_without_our_strategy_keras_does_as_it_does(
        self, strategy, name, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(atomic_files, "replacing", None)  # would fail
        write(model_of(tf.distribute.get_strategy(), value=1.0), tmp_path / name)


@pytest.mark.keras3_only("Keras 2 saves .h5 under its own name")
def test_an_hdf5_file_is_written_beside_and_renamed(strategy, tmp_path, monkeypatch):
    renamed, replace = [], os.replace
    monkeypatch.setattr(
        atomic_files.os, "replace", lambda *pair: (renamed.append(pair[1]), replace(*pair))
    )
    path = tmp_path / "new" / "a.h5"
    model_of(strategy, value=2.0).save(path)
    assert renamed == [str(path)] and os.listdir(path.parent) == ["a.h5"]
    with strategy.scope():
        assert keras.saving.load_model(path, compile=False).get_weights()[0][0, 0] == 2.0


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


def test_checkpoints_of_an_epoch_are_written_at_once(strategy, tmp_path, monkeypatch):
    seen, replace = [], os.replace
    monkeypatch.setattr(
        atomic_files.os, "replace", lambda *pair: (seen.append(pair[1]), replace(*pair))
    )
    model = model_of(strategy)
    path = str(tmp_path / "{epoch}.weights.h5")
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(np.ones([4, 3]), np.ones([4, 2]), epochs=2, verbose=0, callbacks=[save])
    assert seen == [str(tmp_path / f"{epoch}.weights.h5") for epoch in (1, 2)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdaScale(keras.optimizers.SGD(0.1)),
        lambda: DeltaAdasum(keras.optimizers.Adam(0.1), local_steps=2),
        pytest.param(
            lambda: LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"]),
            marks=stacks.needs_state_of_lamb,
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
    rule = "mean" if "AdaScale" in repr(make().__class__) else "adasum"
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], aggregation=rules.get(rule))
    model = model_of(strategy, make)
    model.fit(np.ones([4, 3]), np.ones([4, 2]), batch_size=2, verbose=0)
    model.save(tmp_path / "a.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "a.keras", safe_mode=True)
    assert type(loaded.optimizer) is type(model.optimizer)
    own, others = map(keras_compat.all_variables, (loaded.optimizer, model.optimizer))
    for variable, other in zip(own, others, strict=True):
        path = keras_compat.path_of(variable)
        np.testing.assert_array_equal(variable.numpy(), other.numpy(), path)
    loaded.fit(np.ones([4, 3]), np.ones([4, 2]), batch_size=2, verbose=0)
