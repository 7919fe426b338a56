"""The private names of TensorFlow and Keras that the two seam modules touch, and what they do.

Where a new TensorFlow or Keras has moved something, the failing test's name says what.
"""

import ast
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as keras_optimizer
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.losses import loss as keras_loss
from keras.src.trainers.data_adapters import data_adapter_utils
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
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
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util

import tf_adasum
from tf_adasum import keras_seam, tensorflow_seam

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
    (keras_optimizer.TFOptimizer, "_all_reduce_sum_gradients", "self grads_and_vars"),
    (keras_optimizer, "filter_empty_gradients", "grads_and_vars"),
    (keras_loss, "scale_loss_for_distribution", "value"),
    (keras_loss, "unscale_loss_for_distribution", "value"),
    (keras_trainer.TensorFlowTrainer, "_maybe_symbolic_build", "self iterator data_batch"),
    (keras_trainer.TensorFlowTrainer, "_make_function", "self step_function"),
    (keras_trainer.TFEpochIterator, "_get_iterator", "self"),
    (keras_trainer.TensorFlowTrainer, "_get_metrics_result_or_logs", "self logs"),
    (keras_trainer.TensorFlowTrainer, "_flatten_metrics_in_order", "self logs"),
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
    "cross_device_ops": ["_devices", "_group_size", "_options", "_launchers", "_lock"],
    "launcher": ["_device", "_group_size", "_group_key"],
    "model": ["_distribute_strategy", "_initial_epoch"],
    "callback_list": ["_model"],
    "epoch_iterator": ["_distribute_strategy", "_distributed_dataset", "data_adapter"],
    "data_adapter": ["_shuffle"],
    "context": ["_seed", "_rng"],
    "strategy": ["_collective_key_base"],
    "optimizer": [
        "_accumulated_gradients",
        "_iterations",
        "_model_variables_moving_average",
        "_trainable_variables",
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
        "model": lambda: keras.Sequential(),
        "epoch_iterator": epoch_iterator,
        "data_adapter": lambda: epoch_iterator().data_adapter,
        "context": seeded_context,
        "callback_list": lambda: keras.callbacks.CallbackList(model=keras.Sequential()),
        "strategy": lambda: one_replica,
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


def private_names(module):
    """The attributes with a leading underscore that a module uses and does not define."""
    tree = ast.parse(Path(module.__file__).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).isidentifier()
    }
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    functions = (ast.FunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    private = {name for name in used if isinstance(name, str) and name.startswith("_")}
    return {name for name in private if not name.startswith("__")} - stored - defined


@pytest.mark.parametrize("seam", [tensorflow_seam, keras_seam])
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
            modules = [alias.name for alias in getattr(node, "names", [])]
            modules.append(getattr(node, "module", None) or "")
            for module in modules:
                if module.startswith(("tensorflow.python", "tensorflow.compiler", "keras.src")):
                    importing.setdefault(path.name, set()).add(module)
    assert sorted(importing) == ["keras_seam.py", "tensorflow_seam.py"]


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


# ---- what is installed -------------------------------------------------------------------------


def wrapped_functions():
    return [
        keras_optimizer.TFOptimizer._all_reduce_sum_gradients,
        keras_loss.scale_loss_for_distribution,
        keras_loss.unscale_loss_for_distribution,
        keras_trainer.TensorFlowTrainer._maybe_symbolic_build,
        multi_device_iterator_ops._create_device_dataset,
    ]


def install():
    keras_seam.install()
    tensorflow_seam.stop_autotuning_device_datasets()


def test_installing_again_changes_nothing():
    install()
    once = wrapped_functions()
    install()
    assert all(a is b for a, b in zip(once, wrapped_functions(), strict=True))
    for function in once:
        assert not hasattr(function.__wrapped__, "__wrapped__"), "wrapped exactly once"


def test_another_keras_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"KERAS_BACKEND=tensorflow .*Received: backend 'jax'"):
        keras_seam.install()


def test_inert_without_a_strategy():
    install()
    assert keras_loss.scale_loss_for_distribution(3.0) == 3.0
    variable = keras.Variable([1.0, 2.0])
    pairs = [(tf.constant([0.5, 0.25]), variable)]
    reduced = keras_optimizer.TFOptimizer._all_reduce_sum_gradients(keras.optimizers.SGD(), pairs)
    assert reduced[0][0].numpy().tolist() == [0.5, 0.25] and reduced[0][1] is variable
    keras.optimizers.SGD(1.0).apply(*zip(*pairs, strict=True))
    assert variable.numpy().tolist() == [0.5, 1.75]


def test_the_marker_survives_a_merge():
    marker = tensorflow_seam.GradientReduction(bytes_per_pack=5)
    merged = marker.merge(tensorflow_seam.CommunicationOptions(timeout_seconds=2.0))
    assert isinstance(merged, tensorflow_seam.GradientReduction)
    assert (merged.bytes_per_pack, merged.timeout_seconds) == (5, 2.0)


# ---- two replicas, in a process of their own ---------------------------------------------------

# Replica r's gradient of the first variable; the other variable's is its negative.
GRADIENTS = np.array([[[1.0, 2.0, 0.5], [3.0, -1.0, 2.0]], [[2.0, 0.5, 1.0], [-1.0, 4.0, 0.25]]])

PROGRAM = """
import inspect, json, sys, warnings
import keras, numpy as np, tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_adasum
from keras.src.losses import loss
GRADIENTS = np.array(json.loads(sys.stdin.read()), "float32")
DEVICES = ["CPU:0", "CPU:1"]
reductions, outcome = [], {}
combine = tf_adasum.AdasumCrossDeviceOps.combine_gradients

def counting(self, gradients, options):
    reductions.append([len(own) for own in gradients])
    return combine(self, gradients, options)

tf_adasum.AdasumCrossDeviceOps.combine_gradients = counting

def applied(strategy, make, times=1):
    "The change of both variables after one step, and the marked reductions of it."
    reductions.clear()
    with strategy.scope():
        variables = [keras.Variable(np.ones([2, 3], "float32")) for _ in range(2)]
        optimizer = make(variables)
        optimizer.build(variables)

    def replica_step():
        own = tf.gather(GRADIENTS, tf.distribute.get_replica_context().replica_id_in_sync_group)
        optimizer.apply([own, -own], variables)

    tf.function(lambda: strategy.run(replica_step))()
    per_replica = [strategy.experimental_local_results(v.value) for v in variables]
    same = all((own[0].numpy() == own[1].numpy()).all() for own in per_replica)
    change = [(v.numpy() - 1).tolist() for v in variables]
    return {"reductions": list(reductions), "change": change, "same": same}

adasum = tf_adasum.AdasumMirroredStrategy(devices=DEVICES)
mean = tf_adasum.AdasumMirroredStrategy(devices=DEVICES, aggregation="mean")
stock = tf.distribute.MirroredStrategy(DEVICES)
MAKE = {
    "LossScaleOptimizer": lambda v: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    "MultiOptimizer": lambda v: keras.optimizers.MultiOptimizer(
        lambda variable, first=keras.optimizers.SGD(), second=keras.optimizers.Adam():
            first if variable is v[0] else second
    ),
}
names = [
    name for name in dir(keras.optimizers)
    if inspect.isclass(getattr(keras.optimizers, name))
    and issubclass(getattr(keras.optimizers, name), keras.optimizers.Optimizer)
    and name != "Optimizer"
]
outcome["optimizers"] = {}
for name in names:
    make = MAKE.get(name, lambda v: getattr(keras.optimizers, name)())
    try:
        outcome["optimizers"][name] = applied(adasum, make)
    except Exception as error:
        outcome["optimizers"][name] = f"{type(error).__name__}: {error}"[:1500]

sgd = lambda v: keras.optimizers.SGD(0.5)
outcome["sgd"] = {key: applied(s, sgd) for key, s in
                  (("adasum", adasum), ("mean", mean), ("stock", stock))}

outcome["scales"] = {}
for key, strategy in (("adasum", adasum), ("mean", mean), ("stock", stock)):
    with strategy.scope():
        outcome["scales"][key] = [float(loss.scale_loss_for_distribution(tf.constant(6.0))),
                                  float(loss.unscale_loss_for_distribution(tf.constant(6.0)))]

def fitted(jit_compile):
    keras.utils.set_random_seed(0)
    with adasum.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=jit_compile)
    x = np.random.default_rng(0).standard_normal([8, 3]).astype("float32")
    try:
        history = model.fit(x, x.sum(1), batch_size=8, epochs=3, verbose=0)
        return history.history["loss"]
    except Exception as error:
        return f"{type(error).__name__}: {error}"

outcome["fit"] = fitted(False)
outcome["auto"] = fitted("auto")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    outcome["xla"] = fitted(True)
outcome["warnings"] = [str(warning.message) for warning in caught]

@tf.function(jit_compile=True)
def compiled_loop():
    def in_replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", [tf.ones([3])], options=adasum.gradient_reduction)
    return adasum.run(in_replica)

try:
    compiled_loop()
    outcome["xla loop"] = "no error"
except Exception as error:
    outcome["xla loop"] = f"{type(error).__name__}: {error}"
outcome["after xla"] = fitted(False)
print("OUTCOME" + json.dumps(outcome))
"""


@pytest.fixture(scope="module")
def two_replicas():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(GRADIENTS.tolist()),
        capture_output=True,
        text=True,
        timeout=240,
        cwd=PACKAGE.parent,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CONFIG": "{}"},
    )
    if "OUTCOME" not in done.stdout:
        pytest.fail(done.stderr[-2000:], pytrace=False)
    return json.loads(done.stdout.partition("OUTCOME")[2])


OPTIMIZERS = [
    name
    for name, value in vars(keras.optimizers).items()
    if inspect.isclass(value)
    and issubclass(value, keras.optimizers.Optimizer)
    and name != "Optimizer"
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_reduction_is_marked(two_replicas, name):
    outcome = two_replicas["optimizers"][name]
    assert isinstance(outcome, dict), outcome
    expected = [[2, 2]]  # one reduction, of two gradients on each of two replicas
    if name == "MultiOptimizer":  # one for each of its optimizers
        expected = [[1, 1], [1, 1]]
    assert outcome["reductions"] == expected
    assert outcome["same"], "the replicas hold the same variables"
    change = np.array(outcome["change"])
    assert np.isfinite(change).all() and change.any(axis=(1, 2)).all()


def test_sgd_takes_the_adasum_of_the_replicas_gradients(two_replicas):
    combined = oracle.adasum(GRADIENTS)
    assert np.max(np.abs(combined - GRADIENTS.mean(axis=0))) > 0.1, "not the mean"
    assert np.max(np.abs(combined - GRADIENTS.sum(axis=0))) > 0.1, "and not the sum"
    # Float32: the gradient and the variable, near 1, are rounded once each.
    change = two_replicas["sgd"]["adasum"]["change"]
    np.testing.assert_allclose(change, [-0.5 * combined, 0.5 * combined], rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", ["mean", "stock"])
def test_sgd_elsewhere_takes_the_sum_and_marks_nothing(two_replicas, strategy):
    outcome = two_replicas["sgd"][strategy]
    total = GRADIENTS.sum(axis=0)
    np.testing.assert_allclose(outcome["change"], [-0.5 * total, 0.5 * total], rtol=0, atol=1e-6)
    assert outcome["reductions"] == []


def test_losses_are_scaled_as_ever_except_under_a_non_linear_rule(two_replicas):
    assert two_replicas["scales"] == {
        "adasum": [6.0, 6.0],
        "mean": [3.0, 12.0],
        "stock": [3.0, 12.0],
    }


def test_xla_is_left_out_with_the_reason(two_replicas):
    assert two_replicas["xla"] == two_replicas["fit"]
    assert any("trains this model without XLA" in text for text in two_replicas["warnings"])
    assert "Gradients cannot be aggregated inside XLA-compiled code" in two_replicas["xla loop"]
    assert "jit_compile=False" in two_replicas["xla loop"]


def test_training_works_without_xla_and_after_it_was_refused(two_replicas):
    losses = two_replicas["fit"]
    assert losses[0] > losses[1] > losses[2]
    assert two_replicas["auto"] == losses
    assert two_replicas["after xla"] == losses
