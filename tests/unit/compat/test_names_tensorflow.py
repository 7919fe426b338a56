"""The private names of TensorFlow that tf_adasum uses, beside those that its hooks replace.

Where a new TensorFlow has moved something, the failing test's name says what.
`test_installed_hooks.py` has the hooks.
"""

import importlib.util
import pkgutil

import pytest
import tensorflow as tf
from support.private_names import private_names, signature_problem

import tf_adasum
from tf_adasum._version import STACKS
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.tensorflow import private_names as names_of_tensorflow
from tf_adasum.compat.tensorflow.private_names import (
    CollectiveAllReduce,
    CollectiveAllReduceExtended,
    CollectiveReplicaLauncher,
    CommunicationOptions,
    CoordinatedJob,
    DistributedValues,
    Function,
    GraphOrParentsInXlaContext,
    Mirrored,
    autograph_artifact,
    context,
    multi_worker_util,
    regroup,
)

MODULES = [
    importlib.import_module(f"{tensorflow_compat.__name__}.{found.name}")
    for found in pkgutil.iter_modules(tensorflow_compat.__path__)
    if found.name != "private_names"  # which are imported: what has moved is an error
]

# Each function with the arguments that it is called with.
CALLED = [
    (CommunicationOptions.__init__, "self bytes_per_pack timeout_seconds implementation"),
    (CollectiveAllReduce.__init__, "self devices group_size options collective_keys"),
    (CollectiveReplicaLauncher._get_ordering_token, "self"),
    (
        CollectiveReplicaLauncher.__init__,
        "self group_key group_size collective_keys device options",
    ),
    (
        CollectiveAllReduceExtended.__init__,
        "self container_strategy cluster_resolver communication_options",
    ),
    (CollectiveAllReduceExtended._get_replica_id_in_sync_group, "self replica_id"),
    (
        context.Context.configure_coordination_service,
        "self service_type service_leader cluster_register_timeout_in_ms "
        "heartbeat_timeout_in_ms coordinated_jobs",
    ),
    (context.Context.abort_collective_ops, "self code message"),
    (context.global_seed, ""),
    (regroup, "values wrap_class"),
    (multi_worker_util.normalize_cluster_spec, "cluster_spec"),
    (multi_worker_util.coordination_leader, "cluster_spec"),
    (GraphOrParentsInXlaContext, "graph"),
    (Function._clone, "self python_function"),
    (autograph_artifact, "entity"),
]


@pytest.mark.parametrize(
    ("function", "arguments"), CALLED, ids=[function.__qualname__ for function, _ in CALLED]
)
def test_signature(function, arguments):
    problem = signature_problem(function, arguments.split())
    assert not problem, f"{function.__qualname__} {problem}"


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
        iter(distributed)._type_spec,
        seeded,
        tf.function(lambda: 0),
        names_of_tensorflow.multi_device_iterator_ops,
        names_of_tensorflow.distribute_lib,
        names_of_tensorflow.input_lib,
        tf.data.Dataset.range(2).shuffle(2),
        tf.data.Dataset.range(2).shard(2, 0),
        tf.data.Dataset.from_tensor_slices(["a"]).flat_map(tf.data.TextLineDataset),
        tf.data.Dataset.from_tensor_slices([1]),
        tf.data.TextLineDataset(["a"]),
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split("compat.")[-1])
def test_every_private_name_of_a_module_is_there(module, of_tensorflow):
    gone = {n for n in private_names(module) if not any(hasattr(one, n) for one in of_tensorflow)}
    assert gone == set()


def test_the_search_finds_private_names():
    found = set().union(*map(private_names, MODULES))
    assert {"_instance_key_table", "_collective_key_base", "_rng", "_clone"} <= found


def test_names_without_an_underscore():
    job = CoordinatedJob(name="worker", num_tasks=3)
    assert (job.name, job.num_tasks) == ("worker", 3)
    assert isinstance(context.Context.coordination_service, property)
    assert issubclass(Mirrored, DistributedValues)
    assert isinstance(Mirrored.values, property)
    cluster = multi_worker_util.normalize_cluster_spec({"worker": ["a:1", "b:2"]})
    assert cluster.num_tasks("worker") == 2 and list(cluster.jobs) == ["worker"]


def executed_again():
    specification = importlib.util.spec_from_file_location("again", names_of_tensorflow.__file__)
    specification.loader.exec_module(importlib.util.module_from_spec(specification))


@pytest.mark.parametrize("symbol", ["CollectiveAllReduceExtended", "CollectiveAllReduce"])
def test_the_import_error_names_what_has_moved(symbol, monkeypatch):
    executed_again()  # so that it fails for its own reason only
    module = importlib.import_module(getattr(names_of_tensorflow, symbol).__module__)
    monkeypatch.delattr(module, symbol)
    with pytest.raises(ImportError, match=f"(?s){symbol}.*{STACKS}.*pip install") as raised:
        executed_again()
    assert tf.__version__ in str(raised.value)
