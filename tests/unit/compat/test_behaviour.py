"""What the two packages of compat do: to Keras without a strategy, and with two replicas.

`test_names_*.py` have the private names that they use.
"""

import inspect
import json
import os
import sys
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("keras", minversion="3")  # what Keras 3 does that tf_adasum corrects

import keras
import numpy as np
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from support import keras_versions, oracle
from support.launching import output_of

import tf_adasum
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat

PACKAGE = Path(tf_adasum.__file__).parent


def test_another_keras_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"KERAS_BACKEND=tensorflow .*Received: backend 'jax'"):
        keras_compat.install()


def test_inert_without_a_strategy():
    keras_compat.install()
    tensorflow_compat.hooks.install()
    assert keras_loss.scale_loss_for_distribution(3.0) == 3.0
    variable = keras.Variable([1.0, 2.0])
    pairs = [(tf.constant([0.5, 0.25]), variable)]
    keras.optimizers.SGD(1.0).apply(*zip(*pairs, strict=True))
    assert variable.numpy().tolist() == [0.5, 1.75]


def test_the_marker_survives_a_merge():
    marker = tensorflow_compat.GradientOptions(bytes_per_pack=5)
    merged = marker.merge(tensorflow_compat.CommunicationOptions(timeout_seconds=2.0))
    assert isinstance(merged, tensorflow_compat.GradientOptions)
    assert (merged.bytes_per_pack, merged.timeout_seconds) == (5, 2.0)


def test_the_variables_to_update_may_be_a_generator():
    tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    variable = keras.Variable([3.0])
    keras.optimizers.SGD(1.0).apply([tf.ones([1])], (each for each in [variable]))
    assert variable.numpy() == [2]


def test_optimizers_of_a_model_are_found_in_lists_and_dictionaries():
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    optimizers = [keras.optimizers.SGD(0.1) for _ in range(4)]
    model.compile(optimizers[0], "mse")
    model.second, model.others = optimizers[1], [{"third": optimizers[2]}, (optimizers[3],)]
    assert {*map(id, keras_compat.optimizers_of(model))} == {*map(id, optimizers)}


@pytest.mark.parametrize("unknown", [False, True])
def test_a_dataset_without_a_batch_is_refused(unknown):
    with tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"]).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones([4, 3]), np.ones([4, 1])))
    data = data.batch(8, drop_remainder=True)
    data = data.filter(lambda *rows: True) if unknown else data
    with pytest.raises(ValueError, match="The dataset has no batch"):
        model.fit(data, verbose=0)


def test_a_step_of_the_user_runs_without_xla_and_says_so():
    class OwnStep(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    with tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"]).scope():
        model = OwnStep([keras.layers.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
    with pytest.warns(UserWarning, match="without XLA, because it is the model's own step"):
        model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)


def test_workers_agree_on_one_seed_in_an_epoch():
    """Keras also asks for an iterator at the end of an epoch, and does not use it."""
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with mock.patch.object(strategy._seeds, "shared_if_needed", return_value=None) as shared:
        model.fit(np.ones([8, 3]), np.ones([8, 1]), batch_size=4, epochs=3, verbose=0)
    assert shared.call_count == 3


# ---- two replicas, in a process of their own ---------------------------------------------------

# Replica r's gradient of the first variable; the other variable's is its negative.
GRADIENTS = np.array([[[1.0, 2.0, 0.5], [3.0, -1.0, 2.0]], [[2.0, 0.5, 1.0], [-1.0, 4.0, 0.25]]])
OPTIMIZERS = [
    name
    for name, value in vars(keras.optimizers).items()
    if inspect.isclass(value)
    and issubclass(value, keras.optimizers.Optimizer)
    and name != "Optimizer"
]

PROGRAM = """
import json, sys
import keras, numpy as np, tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_adasum
from keras.src.losses import loss

gradients, names = json.load(sys.stdin)
GRADIENTS = np.array(gradients, "float32")
DEVICES = ["CPU:0", "CPU:1"]
reductions = []
combine = tf_adasum.AdasumCrossDeviceOps.combine_gradients

def counting(self, *arguments):
    reductions.append([len(own) for own in arguments[0]])
    return combine(self, *arguments)

tf_adasum.AdasumCrossDeviceOps.combine_gradients = counting

def caught(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1500]

def applied(strategy, make):
    "The change of both variables after one step, and the marked reductions of it."
    reductions.clear()
    with strategy.scope():
        variables = [keras.Variable(np.ones([2, 3], "float32")) for _ in range(2)]
        optimizer = make(variables)
        optimizer.build(variables)

    def replica_step():
        own = tf.gather(GRADIENTS, tf.distribute.get_replica_context().replica_id_in_sync_group)
        optimizer.apply([own, -own], variables)

    tf.function(lambda: strategy.run(replica_step), autograph=False)()
    per_replica = [strategy.experimental_local_results(v.value) for v in variables]
    same = all((own[0].numpy() == own[1].numpy()).all() for own in per_replica)
    change = [(v.numpy() - 1).tolist() for v in variables]
    return {"reductions": list(reductions), "change": change, "same": same}

STRATEGIES = {
    "adasum": tf_adasum.AdasumMirroredStrategy(devices=DEVICES),
    "mean": tf_adasum.AdasumMirroredStrategy(devices=DEVICES, aggregation="mean"),
    "stock": tf.distribute.MirroredStrategy(DEVICES),
}
adasum = STRATEGIES["adasum"]
MAKE = {
    "LossScaleOptimizer": lambda v: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    "MultiOptimizer": lambda v: keras.optimizers.MultiOptimizer(
        lambda variable, first=keras.optimizers.SGD(), second=keras.optimizers.Adam():
            first if variable is v[0] else second
    ),
}
outcome = {"optimizers": {}, "sgd": {}, "scales": {}}
for name in names:
    make = MAKE.get(name, lambda v: getattr(keras.optimizers, name)())
    outcome["optimizers"][name] = caught(applied, adasum, make)

@tf.function(jit_compile=True)
def compiled_loop():
    def in_replica():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", [tf.ones([3])], options=adasum.gradient_reduction)
    return adasum.run(in_replica)

outcome["xla loop"] = caught(compiled_loop)
for key, strategy in STRATEGIES.items():
    outcome["sgd"][key] = applied(strategy, lambda v: keras.optimizers.SGD(0.5))
    with strategy.scope():
        outcome["scales"][key] = [float(loss.scale_loss_for_distribution(tf.constant(6.0))),
                                  float(loss.unscale_loss_for_distribution(tf.constant(6.0)))]
print("OUTCOME" + json.dumps(outcome))
"""


@pytest.fixture(scope="module")
def two_replicas():
    printed = output_of(
        *(sys.executable, "-c", PROGRAM),
        input=json.dumps([GRADIENTS.tolist(), OPTIMIZERS]),
        cwd=PACKAGE.parent,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CONFIG": "{}"},
    )
    return json.loads(printed.rpartition("OUTCOME")[2].splitlines()[0])


@pytest.mark.parametrize(
    "name",
    keras_versions.marked(
        OPTIMIZERS,
        {
            "Muon": keras_versions.needs_keras(
                "3.13", "its Muon runs under no tf.distribute strategy"
            )
        },
    ),
)
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


@pytest.mark.parametrize(
    ("strategy", "combined", "reductions", "scales"),
    [
        ("adasum", oracle.adasum(GRADIENTS), [[2, 2]], [6.0, 6.0]),
        ("mean", GRADIENTS.mean(axis=0), [[2, 2]], [6.0, 6.0]),
        ("stock", GRADIENTS.sum(axis=0), [], [3.0, 12.0]),
    ],
)
def test_sgd_takes_the_combined_gradients_and_no_scaled_loss(
    two_replicas, strategy, combined, reductions, scales
):
    outcome = two_replicas["sgd"][strategy]
    # Float32: the gradient and the variable, near 1, are rounded once each.
    expected = [-0.5 * combined, 0.5 * combined]
    np.testing.assert_allclose(outcome["change"], expected, rtol=0, atol=1e-6)
    assert outcome["reductions"] == reductions
    assert two_replicas["scales"][strategy] == scales


def test_no_reduction_is_compiled_by_xla(two_replicas):
    assert "Gradients cannot be aggregated inside XLA-compiled code" in two_replicas["xla loop"]
    assert "jit_compile=False" in two_replicas["xla loop"]
