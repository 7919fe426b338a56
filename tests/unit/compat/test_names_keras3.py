"""The private names of Keras 3 that tf_adasum uses, except those that its hooks replace.

If a new Keras has moved something, the failing test's name shows what. `test_installed_hooks.py`
has the hooks.
"""

import hashlib
import importlib
import inspect

import pytest

pytest.importorskip("keras", minversion="3")  # private names of Keras 3

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_trainer
from support.private_names import missing_names

import tf_adasum
from tf_adasum._version import major_minor
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat.keras import keras3
from tf_adasum.compat.keras import private_names_keras3 as names_of_keras3

OF_BOTH = "files losses optimizers phases statistics".split()
OF_KERAS_3 = (
    "build epochs fit jit layers local_predict loss_scaling losses phases py_datasets "
    "scopes updates wrapper"
).split()
MODULES = [
    importlib.import_module(f"{package.__name__}.{name}")
    for package, names in ((keras_compat, OF_BOTH), (keras3, OF_KERAS_3))
    for name in names
]

# What `build.py` uses only if Keras has it, and what `epochs.py` sets for newer versions.
SINCE = {"_autoconvert_optionals": "3.12", "_epoch": "3.16"}
NOT_IN_KERAS = {
    name for name, first in SINCE.items() if major_minor(keras.__version__) < major_minor(first)
}

# Digests of the sources of Keras's steps, of which `jit.py` has a version in two parts. Those of
# Keras 3.11 take the first input for the number of rows, and the others the first that there is.
KERAS_STEPS = {"train_step": "debf0efab9d5794b", "test_step": "a8f04a25512e74e2"}
KERAS_STEPS_OF_3_11 = {"train_step": "38eff65a3e8e6447", "test_step": "4af0440af44a0942"}


@pytest.fixture(scope="module")
def of_keras():
    """One of each kind of object in which the compat package looks for private names."""
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2, use_ema=True)
    optimizer.build([keras.Variable([1.0])])
    epoch_iterator = keras_trainer.TFEpochIterator(
        x=np.ones([2, 1]), batch_size=1, distribute_strategy=tf.distribute.get_strategy()
    )
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    model = keras.Sequential([keras.layers.Input([1])])
    model.compile(loss="mse")
    return [
        strategy,
        optimizer,
        keras.optimizers.LossScaleOptimizer(optimizer),
        epoch_iterator,
        epoch_iterator.data_adapter,
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(2).batch(1)),
        names_of_keras3.GeneratorDataAdapter(iter([(np.ones([2, 1]),)])),
        names_of_keras3.PyDatasetAdapter(keras.utils.PyDataset()),
        names_of_keras3.OrderedEnqueuer,
        model,
        keras.callbacks.CallbackList(model=model),
        keras.layers.BatchNormalization(),
        keras.Variable(0.0),
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split("compat.")[-1])
def test_every_private_name_of_a_module_is_there(module, of_keras):
    assert missing_names(module, of_keras) <= NOT_IN_KERAS


def test_keras_steps_are_those_that_are_compiled_in_parts():
    """What `jit.py` says in its own words: `TensorFlowTrainer.train_step` and `.test_step`."""
    trainer = names_of_keras3.TensorFlowTrainer
    digests = {
        step.__name__: hashlib.sha256(inspect.getsource(step).encode()).hexdigest()[:16]
        for step in (trainer.train_step, trainer.test_step)
    }
    expected = KERAS_STEPS_OF_3_11 if keras.__version__.startswith("3.11.") else KERAS_STEPS
    assert digests == expected, "Keras's steps have changed: compare them with keras3/jit.py"
