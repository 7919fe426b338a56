"""Resumes from models, checkpoints and backups as commit 8169923 wrote them.

    python tests/golden/saved_by_an_earlier_version.py resume FOLDER

It restores what lies in a folder, with the tf_adasum that is installed, trains two further steps,
and prints the numbers as JSON. `tests/unit/backup/test_saved_by_an_earlier_version.py` compares
them, and `tests/multi_worker/scenarios/elastic.py` resumes with it on other replicas.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tf_adasum
from tf_adasum import optimizers, rules

IS_KERAS_2 = keras.__version__.startswith("2.")
DEVICES = ["CPU:0", "CPU:1"]
BATCH, SAVED_AFTER, STEPS = 8, 2, 4
SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam

# The rule, and what makes the optimizer.
TRAININGS = {
    "adacons": (rules.AdaCons(momentum=0.9, rescale=False), lambda: SGD(0.05, momentum=0.9)),
    "adascale": ("mean", lambda: optimizers.AdaScale(SGD(0.05, momentum=0.9))),
    "delta": (
        rules.AdaCons(momentum=0.9, rescale=True),
        lambda: optimizers.DeltaAdasum(Adam(0.02), local_steps=2),
    ),
    "lamb": ("adasum", lambda: optimizers.LAMB(0.02, weight_decay=0.01)),
}
FORMS = ["model.keras", "model.weights.h5", "checkpoint", "backup"]
if IS_KERAS_2:  # there LAMB is TensorFlow Addons', and Keras backs up by itself
    del TRAININGS["lamb"]
    FORMS.remove("backup")


def data():
    """Returns four batches of a linear function with noise."""
    random = np.random.default_rng(18)
    x = random.standard_normal([BATCH * STEPS, 6]).astype("float32")
    noise = 0.1 * random.standard_normal([BATCH * STEPS, 1])
    return x, (x.sum(axis=1, keepdims=True) + noise).astype("float32")


def compiled(name, seed, devices=DEVICES):
    """Returns a strategy and a model of few weights, with statistics of its own."""
    rule, make = TRAININGS[name]
    keras.backend.clear_session()  # names are counted from the start
    keras.utils.set_random_seed(seed)
    strategy = tf_adasum.AdasumMirroredStrategy(devices=devices, aggregation=rule)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([6]),
                keras.layers.Dense(4, activation="tanh", name="hidden"),
                keras.layers.BatchNormalization(momentum=0.5, name="normalized"),
                keras.layers.Dense(1, name="last"),
            ],
            name="small",
        )
        model.compile(make(), "mse")
    return strategy, model


def fit(model, first=0, count=STEPS, callbacks=()):
    """Takes so many steps from one on; returns the logged losses."""
    x, y = (values[BATCH * first : BATCH * (first + count)] for values in data())
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=[*callbacks], **options).history["loss"]


def state_of(model):
    """Returns for each variable, in their order: name, shape, values on the first replica."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    variables = [*model.variables, *optimizer.variables, *(inner.variables if inner else [])]
    rule_state = getattr(inner or optimizer, "rule_state", None)
    variables += rule_state.variables if rule_state else []
    unique = {id(variable): variable for variable in variables}.values()
    return [
        [
            getattr(variable, "path", variable.name),
            list(variable.shape),
            np.asarray(variable).ravel().tolist(),
        ]
        for variable in unique
    ]


def backup_in(place):
    return tf_adasum.callbacks.BackupAndRestore(place / "backup", save_freq=SAVED_AFTER)


def resume(folder):
    """Restores from each form, by a model with other weights, and trains the other steps.

    Returns:
        dict from names to dicts from forms to dicts: the state that was restored, the losses and
        the state at the end.
    """
    return {name: {form: go_on(folder / name, name, form) for form in FORMS} for name in TRAININGS}


def go_on(place, name, form, devices=DEVICES):
    strategy, model = compiled(name, 2, devices)
    if form == "backup":
        seen = StateAtFirstBatch()
        losses = fit(model, callbacks=[backup_in(place), seen])
        return numbers_of(model, seen.state, losses)
    with strategy.scope():
        if form == "model.keras":
            model = keras.models.load_model(place / form)
        else:
            model.optimizer.build(model.trainable_variables)
        if form == "model.weights.h5":
            model.load_weights(place / form)
        elif form == "checkpoint":
            checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
            checkpoint.read(str(place / form)).assert_existing_objects_matched()
    restored = state_of(model)
    losses = fit(model, SAVED_AFTER, STEPS - SAVED_AFTER)
    return numbers_of(model, restored, losses)


def numbers_of(model, restored, losses):
    scale = getattr(model.optimizer, "scale", None)  # of AdaScale
    return {"restored": restored, "losses": losses, "end": state_of(model), "scale": scale}


class StateAtFirstBatch(keras.callbacks.Callback):
    """Keeps the state in which the first batch begins."""

    state = None

    def on_train_batch_begin(self, batch, logs=None):
        self.state = self.state or state_of(self.model)


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * len(DEVICES),
    )
    print(json.dumps(resume(pathlib.Path(sys.argv[2]))))
