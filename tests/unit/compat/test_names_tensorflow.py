"""The private names of TensorFlow that tf_adasum uses, except those that its hooks replace.

If a new TensorFlow has moved something, the failing test's name shows what.
`test_installed_hooks.py` has the hooks.
"""

import importlib
import pkgutil
import re

import pytest
import tensorflow as tf
from support.private_names import execute_again, missing_names, private_names

import tf_adasum
from tf_adasum._version import SUPPORTED_VERSIONS
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.tensorflow import private_names as names_of_tensorflow
from tf_adasum.compat.tensorflow.private_names import (
    CollectiveAllReduceExtended,
    FuncGraph,
    context,
)
from tf_adasum.errors import see

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
        tf.train.CheckpointManager,
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split("compat.")[-1])
def test_every_private_name_of_a_module_is_there(module, of_tensorflow):
    assert missing_names(module, of_tensorflow) == set()


def test_the_search_finds_private_names():
    found = set().union(*map(private_names, MODULES))
    assert {"_instance_key_table", "_collective_key_base", "_rng", "_clone"} <= found


def test_the_import_error_names_all_that_has_moved(monkeypatch):
    execute_again(names_of_tensorflow)  # so that it fails for its own reason only
    moved = (CollectiveAllReduceExtended, FuncGraph)
    for each in moved:
        monkeypatch.delattr(importlib.import_module(each.__module__), each.__name__)
    with pytest.raises(ImportError, match=f"^TensorFlow {tf.__version__} lacks") as raised:
        execute_again(names_of_tensorflow)
    message = str(raised.value)
    for each in moved:
        assert f"{each.__module__}.{each.__name__}" in message
    assert re.search(rf"{SUPPORTED_VERSIONS}.*pip install", message)
    assert message.endswith(see("TFA-103")) and isinstance(raised.value.__cause__, ImportError)
