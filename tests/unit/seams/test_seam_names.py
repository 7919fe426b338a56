"""The private names of TensorFlow that the seam touches.

Where a new TensorFlow has moved something, the failing test's name says what.
"""

import importlib.util
import inspect

import pytest

pytest.importorskip("keras", minversion="3")  # names of TensorFlow 2.21, which comes with Keras 3

import tensorflow as tf
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
    (polymorphic_function.Function, "_clone", "self python_function"),
    (api, "autograph_artifact", "entity"),
    (func_graph.FuncGraph, "capture_call_time_value", "self closure spec"),
    (context, "global_seed", ""),
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
    "context": ["_seed", "_rng"],
    "strategy": ["_collective_key_base"],
    "distributed_dataset": ["_cardinality", "cardinality"],
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


def seeded_context():
    with tensorflow_seam.seeded(3):
        return context.context()


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
        "context": seeded_context,
        "strategy": lambda: one_replica,
        "distributed_dataset": lambda: one_replica.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.range(2).batch(1)
        ),
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


def test_every_private_name_of_the_seam_is_tested_here():
    tested = {name for _, name, _ in SIGNATURES} | {
        n for names in ATTRIBUTES.values() for n in names
    }
    assert private_names(tensorflow_seam), "the search finds them"
    assert private_names(tensorflow_seam) - tested == set()


@pytest.mark.parametrize(
    ("seam", "module", "symbol", "release"),
    [
        (tensorflow_seam, collective_all_reduce_strategy, "CollectiveAllReduceExtended", "2.21"),
        (tensorflow_seam, cross_device_ops, "CollectiveAllReduce", "2.21"),
    ],
)
def test_the_import_error_names_what_has_moved(seam, module, symbol, release, monkeypatch):
    monkeypatch.delattr(module, symbol)
    specification = importlib.util.spec_from_file_location("seam_again", seam.__file__)
    with pytest.raises(ImportError, match=f"(?s){release}.*{symbol}.*pip install") as raised:
        specification.loader.exec_module(importlib.util.module_from_spec(specification))
    assert tf.__version__ in str(raised.value)


def test_the_seam_can_be_executed_again():
    # So that the test above fails for its own reason only.
    specification = importlib.util.spec_from_file_location("seam_again", tensorflow_seam.__file__)
    specification.loader.exec_module(importlib.util.module_from_spec(specification))
