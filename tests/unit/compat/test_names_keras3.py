"""The private names of Keras 3 that tf_adasum uses, beside those that its hooks replace.

Where a new Keras has moved something, the failing test's name says what. `test_installed_hooks.py`
has the hooks.
"""

import hashlib
import importlib.util
import inspect

import pytest

pytest.importorskip("keras", minversion="3")  # private names of Keras 3; see ..._keras2.py

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import masking
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as keras_loss
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.utils import python_utils
from support.private_names import private_names, signature_problem

from tf_adasum.compat.keras import files, fit, layers, optimizers
from tf_adasum.compat.keras.keras3 import epochs, jit, py_datasets, wrapper
from tf_adasum.compat.keras.keras3 import fit as fit_of_keras3
from tf_adasum.compat.keras.keras3 import layers as layers_of_keras3
from tf_adasum.compat.keras.keras3 import optimizers as optimizers_of_keras3
from tf_adasum.compat.keras.keras3 import private_names as names_of_keras3

MODULES = [
    files,
    fit,
    layers,
    optimizers,
    epochs,
    py_datasets,
    jit,
    wrapper,
    fit_of_keras3,
    layers_of_keras3,
    optimizers_of_keras3,
]

TFOptimizer = keras_optimizer.TFOptimizer

# Digests of the sources of Keras's steps, of which `jit.py` has a version in two parts. Those of
# Keras 3.11 take the first input for the number of rows, and the others the first that there is.
KERAS_STEPS = {"train_step": "debf0efab9d5794b", "test_step": "a8f04a25512e74e2"}
KERAS_STEPS_OF_3_11 = {"train_step": "38eff65a3e8e6447", "test_step": "4af0440af44a0942"}

# Each function with the arguments that it is called with.
CALLED = [
    (TFOptimizer, "_use_weight_decay", "self variable"),
    (TFOptimizer, "_clip_gradients", "self grads"),
    (TFOptimizer, "_apply_weight_decay", "self variables"),
    (TFOptimizer, "_backend_update_step", "self grads trainable_variables learning_rate"),
    (TFOptimizer, "_backend_reset_gradient_accumulators", "self"),
    (TFOptimizer, "_backend_increment_gradient_accumulators", "self grads acc_grads"),
    (TFOptimizer, "_update_model_variables_moving_average", "self trainable_variables"),
    (TFOptimizer, "_get_variable_index", "self variable"),
    (keras_optimizer, "filter_empty_gradients", "grads_and_vars"),
    (keras_trainer.TensorFlowTrainer, "_get_metrics_result_or_logs", "self logs"),
    (keras_trainer.TensorFlowTrainer, "_flatten_metrics_in_order", "self logs"),
    (keras_trainer.TensorFlowTrainer, "_compute_loss", "self x y y_pred sample_weight training"),
    (keras_loss, "unscale_loss_for_distribution", "value"),
    (masking, "get_keras_mask", "x"),
    (masking, "set_keras_mask", "x mask"),
    (saving_lib, "save_model", "model filepath weights_format zipped"),
    (saving_lib, "save_weights_only", "model filepath max_shard_size objects_to_skip"),
    (saving_lib, "load_model", "filepath custom_objects compile safe_mode"),
    (saving_lib, "load_weights_only", "model filepath skip_mismatch objects_to_skip"),
    (legacy_h5_format, "save_model_to_hdf5", "model filepath overwrite include_optimizer"),
    (data_adapter_utils, "class_weight_to_sample_weights", "y class_weight"),
    (python_utils, "pythonify_logs", "logs"),
]


def named(value):
    return value.replace(" ", ",") if isinstance(value, str) else value.__name__.split(".")[-1]


@pytest.mark.parametrize(("owner", "name", "arguments"), CALLED, ids=named)
def test_signature(owner, name, arguments):
    assert hasattr(owner, name), f"{owner.__name__}.{name} has gone"
    problem = signature_problem(getattr(owner, name), arguments.split())
    assert not problem, f"{owner.__name__}.{name} {problem}"


@pytest.fixture(scope="module")
def of_keras():
    """One of each kind of object in which the compat package looks for private names."""
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2, use_ema=True)
    optimizer.build([keras.Variable([1.0])])
    epoch_iterator = keras_trainer.TFEpochIterator(
        x=np.ones([2, 1]), batch_size=1, distribute_strategy=tf.distribute.get_strategy()
    )
    model = keras.Sequential([keras.layers.Input([1])])
    model.compile(loss="mse")
    return [
        optimizer,
        epoch_iterator,
        epoch_iterator.data_adapter,
        names_of_keras3.GeneratorDataAdapter(iter([(np.ones([2, 1]),)])),
        names_of_keras3.PyDatasetAdapter(keras.utils.PyDataset()),
        names_of_keras3.OrderedEnqueuer,
        model,
        keras.callbacks.CallbackList(model=model),
        keras.layers.BatchNormalization(),
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split("compat.")[-1])
def test_every_private_name_of_a_module_is_there(module, of_keras):
    gone = {n for n in private_names(module) if not any(hasattr(one, n) for one in of_keras)}
    assert gone == set()


def test_what_ends_the_calls_of_a_callback_list():
    callback_list = keras.callbacks.CallbackList()
    found = [name for name in names_of_keras3.ENDING_CALLS if hasattr(callback_list, name)]
    assert len(found) == 1
    fit_of_keras3.finish_calls(callback_list)


def test_names_without_an_underscore_of_a_py_dataset():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.full([1, 1], index)

    adapter = names_of_keras3.PyDatasetAdapter(Batches(workers=2), shuffle=True)
    assert adapter.shuffle is True and adapter.py_dataset.num_batches == 2
    assert isinstance(adapter.enqueuer, names_of_keras3.OrderedEnqueuer)
    assert adapter.enqueuer.shuffle is True and adapter.enqueuer.py_dataset is adapter.py_dataset


def test_the_search_finds_private_names():
    found = private_names(optimizers_of_keras3) | private_names(epochs)
    assert {"_clip_gradients", "_backend_apply_gradients", "_steps_seen", "_shuffle"} <= found


def execute_again(module):
    specification = importlib.util.spec_from_file_location("seam_again", module.__file__)
    again = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(again)
    return again


@pytest.mark.parametrize(
    ("module", "symbol"),
    [
        (keras_optimizer, "filter_empty_gradients"),
        (keras_optimizer, "TFOptimizer"),
        (keras_trainer, "TensorFlowTrainer"),
    ],
)
def test_the_import_error_names_what_has_moved(module, symbol, monkeypatch):
    execute_again(names_of_keras3)  # so that it fails for this reason only
    monkeypatch.delattr(module, symbol)
    with pytest.raises(ImportError, match=f"(?s){symbol}.*3.15.*pip install") as raised:
        execute_again(names_of_keras3)
    assert keras.__version__ in str(raised.value)


def test_the_import_error_names_all_that_has_moved(monkeypatch):
    for module, symbol in ((keras_optimizer, "TFOptimizer"), (keras_trainer, "TFEpochIterator")):
        monkeypatch.delattr(module, symbol)
    with pytest.raises(ImportError, match=r"TFOptimizer, .*TFEpochIterator\. tf_adasum works"):
        execute_again(names_of_keras3)


def test_a_name_of_one_feature_is_not_needed(monkeypatch):
    monkeypatch.delattr(masking, "set_keras_mask")
    again = execute_again(names_of_keras3)
    assert list(again.library.off.values()) == [["keras.src.backend.common.masking.set_keras_mask"]]
    assert again.get_keras_mask is masking.get_keras_mask


def test_steps_run_without_xla_where_keras_has_no_masks(monkeypatch):
    monkeypatch.setattr(type(jit.library), "off", {jit.XLA: ["a.mask"]})
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    with pytest.warns(
        UserWarning, match=r"without XLA, because this Keras [\d.]+ has no a\.mask"
    ) as caught:
        assert jit.compiled_where_possible(model, model.train_step) == model.train_step
    assert len(caught) == 1


def test_keras_steps_are_those_that_are_compiled_in_parts():
    """What `jit.py` says in its own words: `TensorFlowTrainer.train_step` and `.test_step`."""
    trainer = keras_trainer.TensorFlowTrainer
    digests = {
        step.__name__: hashlib.sha256(inspect.getsource(step).encode()).hexdigest()[:16]
        for step in (trainer.train_step, trainer.test_step)
    }
    expected = KERAS_STEPS_OF_3_11 if keras.__version__.startswith("3.11.") else KERAS_STEPS
    assert digests == expected, "Keras's steps have changed: compare them with keras3/jit.py"
