"""The private names of TensorFlow and Keras 3 that the seams touch.

Where a new TensorFlow or Keras has moved something, the failing test's name says what.
"""

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest

pytest.importorskip(
    "keras", minversion="3"
)  # private names of Keras 3; see test_seam_names_keras2.py

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers import base_optimizer, multi_optimizer
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters import data_adapter_utils
from support.private_names import private_names
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.autograph.impl import api
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    collective_util,
    cross_device_ops,
    cross_device_utils,
    distribute_utils,
    multi_worker_util,
    values,
)
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util

import tf_adasum
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.keras import keras3 as keras_seam
from tf_adasum.seams.keras import shared

PACKAGE = Path(tf_adasum.__file__).parent

# Each function with the arguments that are passed to it, or that an override is called with.
SIGNATURES = [
    (collective_util.Options, "__init__", "self bytes_per_pack timeout_seconds implementation"),
    (collective_util.Options, "merge", "self options"),
    (
        cross_device_ops.CollectiveAllReduce,
        "__init__",
        "self devices group_size options collective_keys",
    ),
    (
        cross_device_ops.CollectiveAllReduce,
        "_all_reduce_per_replica_values",
        "self reduce_op per_replica_values options",
    ),
    (
        cross_device_ops.CollectiveAllReduce,
        "_all_reduce",
        "self reduce_op value replica_id options",
    ),
    (
        cross_device_ops.CollectiveAllReduce,
        "batch_reduce",
        "self reduce_op value_destination_pairs options",
    ),
    (cross_device_utils.CollectiveReplicaLauncher, "_next_instance_key", "self"),
    (cross_device_utils.CollectiveReplicaLauncher, "_get_ordering_token", "self"),
    (
        cross_device_utils.CollectiveReplicaLauncher,
        "__init__",
        "self group_key group_size collective_keys device options",
    ),
    (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "__init__",
        "self container_strategy cluster_resolver communication_options",
    ),
    (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "_initialize_local",
        "self cluster_resolver devices",
    ),
    (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "_initialize_multi_worker",
        "self cluster_resolver",
    ),
    (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "_initialize_local_devices",
        "self cluster_resolver worker_device",
    ),
    (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "_batch_reduce_to",
        "self reduce_op value_destination_pairs options",
    ),
    (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "_create_variable",
        "self next_creator",
    ),
    (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "_get_replica_id_in_sync_group",
        "self replica_id",
    ),
    (
        context.Context,
        "configure_coordination_service",
        "self service_type service_leader cluster_register_timeout_in_ms coordinated_jobs",
    ),
    (multi_device_iterator_ops, "_create_device_dataset", ""),
    (distribute_utils, "regroup", "values wrap_class"),
    (multi_worker_util, "normalize_cluster_spec", "cluster_spec"),
    (multi_worker_util, "coordination_leader", "cluster_spec"),
    (control_flow_util, "GraphOrParentsInXlaContext", "graph"),
    (base_optimizer.BaseOptimizer, "build", "self variables"),
    (base_optimizer.BaseOptimizer, "apply", "self grads trainable_variables"),
    (multi_optimizer.MultiOptimizer, "apply", "self grads trainable_variables"),
    (
        keras_optimizer.TFOptimizer,
        "_distributed_tf_update_step",
        "self distribution grads_and_vars learning_rate",
    ),
    (keras_optimizer.TFOptimizer, "_use_weight_decay", "self variable"),
    (keras.layers.BatchNormalization, "_moments", "self inputs mask"),
    (polymorphic_function.Function, "_clone", "self python_function"),
    (api, "autograph_artifact", "entity"),
    (keras_optimizer.TFOptimizer, "_all_reduce_sum_gradients", "self grads_and_vars"),
    (keras_optimizer, "filter_empty_gradients", "grads_and_vars"),
    (keras_loss, "scale_loss_for_distribution", "value"),
    (keras_loss, "reduce_values", "values sample_weight reduction"),
    (keras_loss, "unscale_loss_for_distribution", "value"),
    (keras_trainer.TensorFlowTrainer, "_maybe_symbolic_build", "self iterator data_batch"),
    (keras_trainer.TensorFlowTrainer, "_make_function", "self step_function"),
    (keras_trainer.TFEpochIterator, "_get_iterator", "self"),
    (keras_trainer.TensorFlowTrainer, "_get_metrics_result_or_logs", "self logs"),
    (keras_trainer.TensorFlowTrainer, "_flatten_metrics_in_order", "self logs"),
    (saving_lib, "save_model", "model filepath weights_format zipped"),
    (saving_lib, "save_weights_only", "model filepath max_shard_size objects_to_skip"),
    (saving_lib, "load_model", "filepath custom_objects compile safe_mode"),
    (saving_lib, "load_weights_only", "model filepath skip_mismatch objects_to_skip"),
    (
        data_adapter_utils,
        "class_weight_to_sample_weights",
        "y class_weight",
    ),
    (func_graph.FuncGraph, "capture_call_time_value", "self closure spec"),
    (context, "global_seed", ""),
    (
        keras_optimizer.TFOptimizer,
        "_backend_apply_gradients",
        "self grads trainable_variables",
    ),
    (keras_optimizer.TFOptimizer, "_clip_gradients", "self grads"),
    (keras_optimizer.TFOptimizer, "_apply_weight_decay", "self variables"),
    (
        keras_optimizer.TFOptimizer,
        "_backend_update_step",
        "self grads trainable_variables learning_rate",
    ),
    (keras_optimizer.TFOptimizer, "_backend_reset_gradient_accumulators", "self"),
    (
        keras_optimizer.TFOptimizer,
        "_backend_increment_gradient_accumulators",
        "self grads acc_grads",
    ),
    (
        keras_optimizer.TFOptimizer,
        "_update_model_variables_moving_average",
        "self trainable_variables",
    ),
    (keras_optimizer.TFOptimizer, "_get_variable_index", "self variable"),
]

# Attributes that exist only on instances.
ATTRIBUTES = {
    "extended": ["_cross_device_ops", "_collective_keys", "_communication_options"],
    "cross_device_ops": [
        "_devices",
        "_group_size",
        "_options",
        "_launchers",
        "_lock",
        "_collective_keys",
    ],
    "launcher": ["_device", "_group_size", "_group_key", "_options", "_ordering_token"],
    "collective_keys": ["_instance_key_table"],
    "model": [
        "_compile_loss",
        "_compile_metrics",
        "_distribute_strategy",
        "_flatten_layers",
        "_initial_epoch",
    ],
    "callback_list": ["_async_train", "_model"],
    "epoch_iterator": [
        "_current_iterator",
        "_distribute_strategy",
        "_distributed_dataset",
        "_epoch_iterator",
        "_num_batches",
        "_steps_seen",
        "data_adapter",
        "steps_per_epoch",
        "steps_per_execution",
    ],
    "data_adapter": ["_shuffle"],
    "context": ["_seed", "_rng"],
    "strategy": ["_collective_key_base"],
    "distributed_dataset": ["_cardinality", "cardinality"],
    "optimizer": [
        "_accumulated_gradients",
        "_iterations",
        "_learning_rate",
        "_model_variables_moving_average",
        "_trainable_variables",
        "_variables",
        "_distribution_strategy",
    ],
}


def named(owner_name_arguments):
    if isinstance(owner_name_arguments, str):
        return owner_name_arguments.replace(" ", ",") or "-"
    return owner_name_arguments.__name__.rpartition(".")[2]


@pytest.mark.parametrize(("owner", "name", "arguments"), SIGNATURES, ids=named)
def test_signature(owner, name, arguments):
    assert hasattr(owner, name), f"{owner.__name__}.{name} has gone"
    parameters = inspect.signature(getattr(owner, name)).parameters
    missing = [argument for argument in arguments.split() if argument not in parameters]
    assert not missing, f"{owner.__name__}.{name} has no longer {missing}: {list(parameters)}"
    required = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    unknown = [argument for argument in required if argument not in arguments.split()]
    assert not arguments or not unknown, f"{owner.__name__}.{name} now requires {unknown}"


@pytest.fixture(scope="module")
def one_replica():
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])


def epoch_iterator():
    return keras_trainer.TFEpochIterator(
        x=np.ones([2, 1]), batch_size=1, distribute_strategy=tf.distribute.get_strategy()
    )


def seeded_context():
    with tensorflow_seam.seeded(3):
        return context.context()


def built_optimizer():
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2, use_ema=True)
    optimizer.build([keras.Variable([1.0])])
    return optimizer


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in ATTRIBUTES.items() for name in names]
)
def test_attribute(one_replica, kind, name):
    extended = one_replica.extended
    instance = {
        "extended": lambda: extended,
        "cross_device_ops": lambda: extended._cross_device_ops,
        "launcher": lambda: extended._cross_device_ops._launchers[0],
        "collective_keys": lambda: extended._cross_device_ops._collective_keys,
        "model": lambda: keras.Sequential(),
        "epoch_iterator": epoch_iterator,
        "data_adapter": lambda: epoch_iterator().data_adapter,
        "context": seeded_context,
        "callback_list": lambda: keras.callbacks.CallbackList(model=keras.Sequential()),
        "strategy": lambda: one_replica,
        "distributed_dataset": lambda: one_replica.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.range(2).batch(1)
        ),
        "optimizer": built_optimizer,
    }[kind]()
    assert hasattr(instance, name), f"{type(instance).__name__}.{name} has gone"


def test_coordination_names():
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=3)
    assert (job.name, job.num_tasks) == ("worker", 3)
    assert isinstance(context.Context.coordination_service, property)
    assert issubclass(values.Mirrored, values.DistributedValues)
    assert isinstance(values.PerReplica.values, property)
    cluster = multi_worker_util.normalize_cluster_spec({"worker": ["a:1", "b:2"]})
    assert cluster.num_tasks("worker") == 2 and list(cluster.jobs) == ["worker"]


@pytest.mark.parametrize("seam", [tensorflow_seam, keras_seam, shared])
def test_every_private_name_of_a_seam_is_tested_here(seam):
    tested = {name for _, name, _ in SIGNATURES} | {
        n for names in ATTRIBUTES.values() for n in names
    }
    assert private_names(seam), "the search finds them"
    assert private_names(seam) - tested == set()


def test_private_modules_are_imported_by_the_seams_only():
    importing = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            aliases = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
            modules = [alias.name for alias in aliases]
            modules.append(getattr(node, "module", None) or "")
            for module in modules:
                if module.startswith(
                    ("tensorflow.python", "tensorflow.compiler", "tensorflow.tsl", "keras.src")
                ):
                    importing.setdefault(path.name, set()).add(module)
    assert sorted(importing) == ["keras2.py", "keras3.py", "tensorflow_seam.py"]


@pytest.mark.parametrize(
    ("seam", "module", "symbol", "release"),
    [
        (tensorflow_seam, collective_all_reduce_strategy, "CollectiveAllReduceExtended", "2.21"),
        (tensorflow_seam, cross_device_ops, "CollectiveAllReduce", "2.21"),
        (keras_seam, keras_optimizer, "filter_empty_gradients", "3.15"),
        (keras_seam, keras_optimizer, "TFOptimizer", "3.15"),
        (keras_seam, keras_trainer, "TensorFlowTrainer", "3.15"),
    ],
)
def test_the_import_error_names_what_has_moved(seam, module, symbol, release, monkeypatch):
    monkeypatch.delattr(module, symbol)
    specification = importlib.util.spec_from_file_location("seam_again", seam.__file__)
    with pytest.raises(ImportError, match=f"(?s){release}.*{symbol}.*pip install") as raised:
        specification.loader.exec_module(importlib.util.module_from_spec(specification))
    assert (tf if seam is tensorflow_seam else keras).__version__ in str(raised.value)


def test_the_seams_can_be_executed_again():
    # So that the test above fails for its own reason only.
    for seam in (tensorflow_seam, keras_seam):
        specification = importlib.util.spec_from_file_location("seam_again", seam.__file__)
        specification.loader.exec_module(importlib.util.module_from_spec(specification))
