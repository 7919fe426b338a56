"""Restores models, checkpoints and backups as commit 8169923 wrote them, on two replicas.

    python tests/golden/saved_by_an_earlier_version.py FOLDER

It prints the variables that each model then has, as JSON.
`tests/unit/backup/test_saved_by_an_earlier_version.py` compares them.
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

DEVICES = ["CPU:0", "CPU:1"]
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
if keras.__version__.startswith("2."):  # LAMB is TensorFlow Addons', and Keras backs up by itself
    del TRAININGS["lamb"]
    FORMS.remove("backup")


def state_of(model):
    """Returns for each variable, in their order: name, shape, values on the first replica."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    variables = [*model.variables, *optimizer.variables, *(inner.variables if inner else [])]
    rule_state = getattr(inner or optimizer, "rule_state", None)
    variables += rule_state.variables if rule_state else []
    return [
        [
            getattr(variable, "path", variable.name),
            list(variable.shape),
            np.asarray(variable).ravel().tolist(),
        ]
        for variable in {id(variable): variable for variable in variables}.values()
    ]


def restored(folder, name, form):
    """Returns the state of a model with other weights after it was restored."""
    rule, make = TRAININGS[name]
    keras.backend.clear_session()  # names are counted from the start
    keras.utils.set_random_seed(2)
    strategy = tf_adasum.AdasumMirroredStrategy(devices=DEVICES, aggregation=rule)
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
        model.optimizer.build(model.trainable_variables)
        if form == "model.keras":
            model = keras.models.load_model(folder / name / form)
        elif form == "model.weights.h5":
            model.load_weights(folder / name / form)
        elif form == "checkpoint":
            checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
            checkpoint.read(str(folder / name / form)).assert_existing_objects_matched()
        else:
            backup = tf_adasum.callbacks.BackupAndRestore(folder / name / form, save_freq=2)
            keras.callbacks.CallbackList([backup], model=model).on_train_begin()
    return state_of(model)


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * len(DEVICES),
    )
    where = pathlib.Path(sys.argv[1])
    print(
        json.dumps(
            {name: {form: restored(where, name, form) for form in FORMS} for name in TRAININGS}
        )
    )
