"""The private names of Keras 3 that tf_adasum uses, except those that its hooks replace.

If a new Keras has moved something, the failing test's name shows what. `test_installed_hooks.py`
has the hooks.
"""

import importlib

import pytest

pytest.importorskip("keras", minversion="3")  # private names of Keras 3

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_trainer
from support.private_names import missing_names

import tf_adasum
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat.keras import keras3
from tf_adasum.compat.keras import private_names_keras3 as names_of_keras3

OF_BOTH = "files losses optimizers phases statistics".split()
OF_KERAS_3 = (
    "build epochs fit layers local_predict loss_scaling losses phases py_datasets "
    "scopes updates wrapper"
).split()
MODULES = [
    importlib.import_module(f"{package.__name__}.{name}")
    for package, names in ((keras_compat, OF_BOTH), (keras3, OF_KERAS_3))
    for name in names
]

# What `build.py` uses only if Keras has it.
NOT_IN_KERAS = {"_autoconvert_optionals"} if keras.__version__.startswith("3.11.") else set()


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
