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
from tf_adasum.optimizers import LAMB, AdaScale, DeltaAdasum

FORMS = ["model", "weights", "backup", "checkpoint"]

KINDS = {
    "adascale": ("mean", lambda: AdaScale(keras.optimizers.SGD(0.05, momentum=0.9))),
    "adacons": (rules.AdaCons(), lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
    "lamb": ("adasum", lambda: LAMB(0.02, weight_decay=0.01)),
    "delta": ("adasum", lambda: DeltaAdasum(keras.optimizers.Adam(0.02))),
}


def compiled_model(kind, replicas, seed):
    """Return a model under a strategy of so many replicas of this process."""
    devices = [f"CPU:{index}" for index in range(replicas)]
    rule, make = KINDS[kind]
    strategy = tf_adasum.AdasumMirroredStrategy(devices, aggregation=rules.get(rule))
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(1)])
        model.compile(make(), "mse")
        keras_compat.build(model.optimizer, model.trainable_variables)
    return model


def fit(model, epochs=1, callbacks=()):
    options = {"batch_size": 12, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(*random_data(24), callbacks=[*callbacks], **options)


def state_of(model):
    """Return the model's weights in one vector, and all variables with those of the optimizer."""
    states = keras_compat.aggregation_states_of(model.optimizer)
    variables = [*model.weights, *keras_compat.all_variables(model.optimizer)]
    for state in states:
        if state.rule_state:
            variables += state.rule_state.of_name.values()
    weights, everything = (
        np.concatenate([np.ravel(v.numpy()).astype("float64") for v in own])
        for own in (model.weights, variables)
    )
    return weights, everything


def save(model, folder):
    fit(model, callbacks=[BackupAndRestore(folder / "backup", delete_checkpoint=False)])
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "checkpoint"))


def restore(model, folder, form):
    """Return the model, and what `fit` needs to continue."""
    if form == "backup":
        return model, [BackupAndRestore(folder / "backup", False, delete_checkpoint=False)]
    if form == "checkpoint":
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.read(str(folder / "checkpoint")).assert_consumed()
    elif form == "weights":
        model.load_weights(folder / "model.weights.h5")
    else:
        with model.distribute_strategy.scope():
            model = keras.saving.load_model(folder / "model.keras", safe_mode=True)
    return model, []


class AtBegin(keras.callbacks.Callback):
    """The state and the number of updates with which training begins."""

    state = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.state is None:
            self.state = state_of(self.model)
            self.iterations = int(self.model.optimizer.iterations.numpy())


def change_replicas(strategy, kind, folder, saved_on, restored_on):
    """Return for each form what was restored, and whether training ends as the unbroken one."""
    del strategy  # there are others
    folder = pathlib.Path(folder)
    model = compiled_model(kind, saved_on, seed=1)
    save(model, folder)
    results, ends = {}, {}
    for form in FORMS:
        begin = AtBegin()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            restored, callbacks = restore(compiled_model(kind, restored_on, seed=9), folder, form)
            epochs = 2 if form == "backup" else 1  # of which the first one is done
            loss = fit(restored, epochs, [*callbacks, begin]).history["loss"]
        said = [str(each.message) for each in caught if each.category is UserWarning]
        optimizer = restored.optimizer
        (state,) = keras_compat.aggregation_states_of(optimizer)
        # The state of other replicas differs.
        (weights, everything), expected = begin.state, state_of(model)
        results |= {
            f"{form} same": np.array_equal(weights, expected[0]),
            f"{form} all same": np.array_equal(everything, expected[1]),
            f"{form} iterations": begin.iterations,
            f"{form} finite": bool(np.isfinite(loss).all()),
            f"{form} anew": sum("is reset" in each for each in said),
            f"{form} scale": getattr(optimizer, "scale", 0.0),
            f"{form} state": bool(state and state.rule_state),
        }
        ends[form] = state_of(restored)[1]
    fit(model)
    expected = state_of(model)[1]
    return results | {f"{form} end": np.array_equal(end, expected) for form, end in ends.items()}
