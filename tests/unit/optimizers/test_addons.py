"""LAMB of TensorFlow Addons, in `optimizers.LAMB`; gradients of the other optimizers of Addons."""

import subprocess
import sys
import warnings

import pytest

pytest.importorskip("keras.src.engine", reason="TensorFlow Addons, which need Keras 2")

import keras
import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from support import oracle

import tf_adasum
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import LAMB


def test_arguments_and_configuration():
    one = LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay="bias")
    assert one.exclude_from_weight_decay == ["bias"] == one.exclude_from_layer_adaptation
    options = {"learning_rate": 0.5, "beta_1": 0.8, "epsilon": 1e-3, "weight_decay": 0.2}
    options |= {"exclude_from_layer_adaptation": ["gamma"], "clipnorm": 0.5, "name": "own"}
    optimizer, theirs = LAMB(**options), tfa.optimizers.LAMB(**options)
    config = optimizer.get_config()
    assert theirs.get_config().items() <= config.items()
    assert options.items() <= config.items()
    assert optimizer.exclude_from_layer_adaptation == theirs.exclude_from_layer_adaptation
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LAMB.from_config(config).get_config() == config


def run(code, **options):
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    return subprocess.run(command, timeout=120, text=True, **options)


def test_only_lamb_needs_addons():
    code = """
import sys
sys.modules["tensorflow_addons"] = None
import keras
import tf_adasum
tf_adasum.optimizers.AdaScale(keras.optimizers.SGD(0.1))
tf_adasum.optimizers.LAMB
"""
    result = run(code, capture_output=True)
    assert result.returncode == 1
    assert "ImportError: With Keras 2, optimizers.LAMB" in result.stderr
    assert "pip install 'tensorflow-addons==0.23.*'" in result.stderr


def test_the_warning_of_addons_is_suppressed():
    run("import keras, tf_adasum; tf_adasum.optimizers.LAMB()", check=True)


@pytest.fixture(scope="module")
def strategy():
    devices = [f"CPU:{index}" for index in range(len(tf.config.list_logical_devices("CPU")))]
    if len(devices) < 2:
        pytest.skip("needs two logical devices, made before TensorFlow runs: run this file alone")
    return tf_adasum.AdasumMirroredStrategy(devices=devices[:2])


def step_of(strategy, optimizer, variables):
    """A function that takes steps, with gradients of each replica for each variable."""

    @tf.function
    def step(*gradients):
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = [each[replica] for each in gradients]
            optimizer.apply_gradients(zip(own, variables, strict=True))

        strategy.run(in_replica)

    return step


def combined(gradients):
    """The Adasum of two gradients, in the shape of one."""
    flat = [gradient.ravel().astype("float64") for gradient in gradients]
    return oracle.adasum(flat).reshape(gradients[0].shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfa.optimizers.LAMB(0.1, weight_decay=0.1),
        lambda: tfa.optimizers.AdamW(0.01, 0.1),
        lambda: tfa.optimizers.LazyAdam(0.1),
        lambda: tfa.optimizers.MovingAverage(keras.optimizers.legacy.SGD(0.1)),
        lambda: tfa.optimizers.Lookahead(keras.optimizers.legacy.Adam(0.1)),
        lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.legacy.Adam(0.1, clipnorm=0.5),
        lambda: LAMB(0.1),
    ],
    ids=["LAMB", "AdamW", "LazyAdam", "MovingAverage", "Lookahead", "SGD", "Adam", "ours"],
)
def test_gradients_are_combined(strategy, make):
    """Three steps are those of the same optimizer on the Adasum of the replicas' gradients."""
    random = np.random.default_rng(3)
    start = random.standard_normal([4, 3]).astype("float32")
    gradients = random.standard_normal([3, 2, 4, 3]).astype("float32")

    with strategy.scope():
        variable, optimizer = tf.Variable(start), make()
    alone, reference = tf.Variable(start), make()
    step = step_of(strategy, optimizer, [variable])
    for own in gradients:
        step(tf.constant(own))
        reference.apply_gradients([(tf.constant(combined(own), tf.float32), alone)])
    for copy in strategy.experimental_local_results(variable):
        np.testing.assert_allclose(copy.numpy(), alone.numpy(), rtol=2e-6, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == 3


def test_a_custom_gradient_aggregator_is_left_alone(strategy):
    def first_only(pairs):
        context = tf.distribute.get_replica_context()
        is_first = tf.cast(context.replica_id_in_sync_group == 0, tf.float32)
        summed = context.all_reduce("SUM", [gradient * is_first for gradient, _ in pairs])
        return list(zip(summed, [variable for _, variable in pairs], strict=True))

    with strategy.scope():
        variable = tf.Variable([0.0, 0.0])
        optimizer = keras.optimizers.legacy.SGD(1.0, gradient_aggregator=first_only)

    step_of(strategy, optimizer, [variable])(tf.constant([[1.0, 1.0], [2.0, 2.0]]))
    np.testing.assert_array_equal(variable.numpy(), [-1.0, -1.0])


@pytest.mark.parametrize("measures", [False, True])
def test_a_legacy_optimizer_takes_further_variables(strategy, measures):
    """As of layers that are no longer frozen, or of another model."""
    random = np.random.default_rng(4)
    shapes = [(3,), (2, 2), (5,)]
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        optimizer = keras.optimizers.legacy.SGD(1.0, momentum=0.5)
    alone = [np.zeros(shape) for shape in shapes]
    momentum = [np.zeros(shape) for shape in shapes]
    for used in ([0], [0, 1], [2]):
        gradients = {i: random.standard_normal([2, *shapes[i]]).astype("float32") for i in used}
        step_of(strategy, optimizer, [variables[i] for i in used])(*gradients.values())
        for i, own in gradients.items():
            momentum[i] = 0.5 * momentum[i] - combined(own)
            alone[i] += momentum[i]
        if measures:
            keras_compat.aggregation_states_of(optimizer)[-1].measure_orthogonality()
    for variable, expected in zip(variables, alone, strict=True):
        for copy in strategy.experimental_local_results(variable):
            np.testing.assert_allclose(copy.numpy(), expected, rtol=2e-6, atol=1e-6)
    if measures:
        (state,) = keras_compat.aggregation_states_of(optimizer)
        assert state.orthogonality.shape == [3 + 1]


def test_nadam_on_several_devices_is_refused(strategy):
    with strategy.scope():
        variable = tf.Variable([1.0])
        optimizer = keras.optimizers.Nadam(0.1)
    with pytest.raises(ValueError, match=r"legacy\.Nadam.*Received: 2 devices"):
        step_of(strategy, optimizer, [variable])(tf.ones([2, 1]))
    with tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"]).scope():
        keras.optimizers.Nadam(0.1).build([tf.Variable([1.0])])
