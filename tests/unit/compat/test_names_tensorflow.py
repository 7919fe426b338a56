"""The private names of TensorFlow that tf_adasum uses, except those that its hooks replace.

If a new TensorFlow has moved something, the failing test's name shows what.
`test_installed_hooks.py` has the hooks.
"""

import importlib
import pkgutil

import pytest
import tensorflow as tf
from support.private_names import missing_names

import tf_adasum
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.tensorflow import private_names as names_of_tensorflow
from tf_adasum.compat.tensorflow.private_names import context

MODULES = [
    importlib.import_module(f"{tensorflow_compat.__name__}.{found.name}")
    for found in pkgutil.iter_modules(tensorflow_compat.__path__)
    if "private_names" not in found.name  # which are imported: what has moved is an error
]


@pytest.fixture(scope="module")
def of_tensorflow():
    """One of each kind of object in which the compat package looks for private names."""
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    dataset = tf.data.Dataset.range(2).batch(1)
    distributed = strategy.experimental_distribute_dataset(dataset)
    with tensorflow_compat.seeded(3):  # there is no generator of seeds before
        seeded = context.context()
    return [
        strategy,
        strategy.extended,
        collectives,
        collectives._launchers[0],
        collectives._collective_keys,
        distributed,
        strategy.distribute_datasets_from_function(lambda context: dataset),
        iter(distributed),
        iter(distributed)._type_spec,
        seeded,
        tf.function(lambda: 0),
        names_of_tensorflow.multi_device_iterator_ops,
        names_of_tensorflow.distribute_lib,
        names_of_tensorflow.input_lib,
        tf.data.Dataset.range(2).shuffle(2),
        tf.data.Dataset.range(2).shard(2, 0),
        tf.data.Dataset.range(2).take(1),
        tf.data.Dataset.range(2).cache(),
        tf.data.Dataset.from_tensor_slices(["a"]).flat_map(tf.data.TextLineDataset),
        tf.data.Dataset.from_tensor_slices([1]),
        tf.data.TextLineDataset(["a"]),
        tf.train.Checkpoint,
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split("compat.")[-1])
def test_every_private_name_of_a_module_is_there(module, of_tensorflow):
    assert missing_names(module, of_tensorflow) == set()
