"""The private names of Keras 2.15 that tf_adasum uses, beside replaced ones.

Where a patch release has moved something, the failing test's name says what.
`test_installed_hooks.py` has the hooks.
"""

import inspect

import pytest

pytest.importorskip("keras.src.engine", reason="private names of Keras 2")

import keras
import numpy as np
import tensorflow as tf
from keras.src.engine import training
from keras.src.engine.data_adapter import DataHandler
from keras.src.optimizers.optimizer import Optimizer
from keras.src.saving import saving_lib
from keras.src.saving.legacy import save as legacy_saving
from support.private_names import private_names

import tf_adasum
from tf_adasum.compat.keras import files, fit, layers, optimizers
from tf_adasum.compat.keras.keras2 import files as files_of_keras2
from tf_adasum.compat.keras.keras2 import fit as fit_of_keras2
from tf_adasum.compat.keras.keras2 import layers as layers_of_keras2
from tf_adasum.compat.keras.keras2 import optimizers as optimizers_of_keras2
from tf_adasum.compat.keras.keras2 import wrapper

MODULES = [
    files,
    fit,
    layers,
    optimizers,
    wrapper,
    files_of_keras2,
    fit_of_keras2,
    layers_of_keras2,
    optimizers_of_keras2,
]

# Each function with arguments that it is called with.
SIGNATURES = [
    (Optimizer, "_use_weight_decay", "self variable"),
    (Optimizer, "apply_gradients", "self grads_and_vars name skip_gradients_aggregation"),
    (
        keras.optimizers.legacy.Optimizer,
        "apply_gradients",
        "self grads_and_vars name experimental_aggregate_gradients",
    ),
    (keras.Model, "train_on_batch", "self x return_dict"),
    (keras.Model, "test_on_batch", "self x return_dict"),
    (training, "flatten_metrics_in_order", "logs metrics_names"),
    (saving_lib, "save_model", "model filepath weights_format"),
    (saving_lib, "save_weights_only", "model filepath"),
    (saving_lib, "load_model", "filepath custom_objects compile safe_mode"),
    (saving_lib, "load_weights_only", "model filepath skip_mismatch"),
    (legacy_saving, "save_model", "model filepath save_format"),
    (legacy_saving, "save_weights", "model filepath"),
    (tf.train.Checkpoint, "_write", "self file_prefix"),
]


def named(value):
    return value.replace(" ", ",") if isinstance(value, str) else value.__name__.split(".")[-1]


@pytest.mark.parametrize(("owner", "name", "arguments"), SIGNATURES, ids=named)
def test_signature(owner, name, arguments):
    assert hasattr(owner, name), f"{owner.__name__}.{name} has gone"
    parameters = inspect.signature(getattr(owner, name)).parameters
    missing = [argument for argument in arguments.split() if argument not in parameters]
    assert not missing, f"{owner.__name__}.{name} has no longer {missing}: {list(parameters)}"


@pytest.fixture(scope="module")
def of_keras():
    """One of each kind of object in which the compat package looks for private names."""
    variable = tf.Variable([1.0])
    new, legacy = keras.optimizers.SGD(0.1, use_ema=True), keras.optimizers.legacy.SGD(0.1)
    scheduled = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
    for optimizer in (new, legacy, scheduled):
        optimizer.apply_gradients([(tf.ones([1]), variable)])
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    handler = DataHandler(np.ones([2, 1]), np.ones([2, 1]), batch_size=1, model=model)
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0", "CPU:1"])
    with strategy.scope():
        distributed = tf.Variable([1.0])
    copy = strategy.experimental_local_results(distributed)[0]
    own = [new, legacy, scheduled, handler, model, variable, copy.handle, strategy.extended]
    return [*own, tf.train.Checkpoint]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split("compat.")[-1])
def test_every_private_name_of_a_module_is_there(module, of_keras):
    gone = {n for n in private_names(module) if not any(hasattr(one, n) for one in of_keras)}
    assert gone == set()


def test_the_search_finds_private_names():
    found = private_names(optimizers_of_keras2) | private_names(fit_of_keras2)
    assert {"_create_all_weights", "_update_step", "_insufficient_data"} <= found
