"""What `test_elastic.py` trains: on some replicas, saved in every form, gone on with on others."""

import pathlib
import warnings

import keras
import numpy as np
import tensorflow as tf

import tf_adasum
from scenarios.basics import random_data
from tf_adasum.aggregation import rules
from tf_adasum.callbacks import BackupAndRestore
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import AdaScale, DeltaAdasum

ROWS, BATCH = 24, 12

KINDS = {
    "adascale": ("mean", lambda: AdaScale(keras.optimizers.SGD(0.05, momentum=0.9))),
    "adacons": (rules.AdaCons(), lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
    "delta": ("adasum", lambda: DeltaAdasum(keras.optimizers.Adam(0.02))),
}


def strategy_of(kind, replicas):
    devices = [f"CPU:{index}" for index in range(replicas)]
    rule = rules.get(KINDS[kind][0])
    return tf_adasum.AdasumMirroredStrategy(devices, aggregation=rule)


def compiled_model(strategy, kind, seed):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(1)])
        model.compile(KINDS[kind][1](), "mse")
        keras_compat.build(model.optimizer, model.trainable_variables)
    return model


def fit(model, epochs=1, callbacks=()):
    x, y = random_data(ROWS)
    options = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=[*callbacks], **options)


def save(model, folder):
    folder = pathlib.Path(folder)
    fit(model, callbacks=[BackupAndRestore(folder / "backup", delete_checkpoint=False)])
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "checkpoint"))


def restore(strategy, kind, folder, form):
    """Return the model, and what `fit` needs to go on."""
    folder = pathlib.Path(folder)
    model = compiled_model(strategy, kind, seed=9)
    if form == "backup":
        return model, [BackupAndRestore(folder / "backup", False, delete_checkpoint=False)]
    if form == "checkpoint":
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.read(str(folder / "checkpoint")).assert_consumed()
    elif form == "weights":
        model.load_weights(folder / "model.weights.h5")
    else:
        with strategy.scope():
            model = keras.saving.load_model(folder / "model.keras", safe_mode=True)
    return model, []


class AtBegin(keras.callbacks.Callback):
    """The weights and the number of updates with which training begins."""

    weights = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.weights is not None:
            return
        self.weights = np.concatenate([w.ravel() for w in self.model.get_weights()])
        self.iterations = int(self.model.optimizer.iterations.numpy())


def change_replicas(strategy, kind, folder, saved_on, restored_on, forms):
    """Return for each form what was restored and whether training goes on."""
    model = compiled_model(strategy_of(kind, saved_on), kind, seed=1)
    save(model, folder)
    saved = np.concatenate([w.ravel() for w in model.get_weights()])
    results = {}
    for form in forms:
        other = strategy_of(kind, restored_on)
        begin = AtBegin()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            restored, callbacks = restore(other, kind, folder, form)
            loss = fit(restored, epochs=2, callbacks=[*callbacks, begin]).history["loss"]
        said = [str(each.message) for each in caught if each.category is UserWarning]
        optimizer = restored.optimizer
        state = keras_compat.aggregation_state_of(optimizer)
        results |= {
            f"{form} same": bool((begin.weights == saved).all()),
            f"{form} iterations": begin.iterations,
            f"{form} finite": bool(np.isfinite(loss).all()),
            f"{form} anew": sum("is reset" in each for each in said),
            f"{form} scale": getattr(optimizer, "scale", 0.0),
            f"{form} state": bool(state and state.rule_state),
        }
    return results
