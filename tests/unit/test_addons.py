"""Optimizers of TensorFlow Addons: `optimizers.LAMB` hands on; the others' gradients combine."""

import json
import pathlib
import warnings

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
import tensorflow_addons as tfa

import tf_adasum
from tf_adasum.optimizers import LAMB

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden/lamb_addons.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_lamb_gives_the_golden_values(case):
    """The values that LAMB of the main lane is compared with, to float32 rounding."""
    golden = GOLDEN["cases"][case]
    variables = {
        name: tf.Variable(value, name=name, dtype="float32")
        for name, value in GOLDEN["variables"].items()
    }
    optimizer = LAMB(learning_rate=GOLDEN["learning_rate"], **golden["options"])
    rates = GOLDEN["learning_rates"].get(case, [GOLDEN["learning_rate"]] * len(golden["steps"]))
    sparse = GOLDEN["sparse"]
    for step, expected in enumerate(golden["steps"]):
        optimizer.learning_rate = rates[step]
        gradients = {
            name: tf.constant(value, tf.float32)
            for name, value in GOLDEN["gradients"][step].items()
        }
        if case == "sparse":
            own = sparse["variable"]
            gradients[own] = tf.IndexedSlices(
                tf.constant(sparse["rows"][step], tf.float32),
                sparse["indices"][step],
                tf.constant(gradients[own].shape),
            )
        optimizer.apply_gradients([(gradients[name], v) for name, v in variables.items()])
        for name, value in expected.items():
            # The same code in the same TensorFlow, perhaps on another CPU.
            np.testing.assert_allclose(variables[name].numpy(), value, rtol=1e-6, atol=1e-8)


def test_a_single_pattern_is_a_list_of_one():
    one = LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay="bias")
    assert one.exclude_from_weight_decay == ["bias"] == one.exclude_from_layer_adaptation


def test_the_configuration_has_everything():
    optimizer = LAMB(
        0.1,
        beta_1=0.8,
        weight_decay=0.2,
        exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=["gamma"],
        clipnorm=0.5,
        name="own",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = LAMB.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    assert again.exclude_from_layer_adaptation == ["gamma"] and again.clipnorm == 0.5


@pytest.fixture(scope="module")
def strategy():
    devices = [f"CPU:{index}" for index in range(len(tf.config.list_logical_devices("CPU")))]
    if len(devices) < 2:
        pytest.skip("needs two logical devices, made before TensorFlow runs: run this file alone")
    return tf_adasum.AdasumMirroredStrategy(devices=devices[:2])


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

    @tf.function
    def step(number):
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply_gradients([(tf.constant(gradients)[number][replica], variable)])

        strategy.run(in_replica)

    alone, reference = tf.Variable(start), make()
    for number, own in enumerate(gradients):
        step(tf.constant(number))
        combined = oracle.adasum([g.ravel().astype("float64") for g in own]).reshape(4, 3)
        reference.apply_gradients([(tf.constant(combined, tf.float32), alone)])
    for copy in strategy.experimental_local_results(variable):
        np.testing.assert_allclose(copy.numpy(), alone.numpy(), rtol=2e-6, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == 3


def test_a_gradient_aggregator_of_the_users_own_is_left_alone(strategy):
    def first_only(pairs):
        context = tf.distribute.get_replica_context()
        is_first = tf.cast(context.replica_id_in_sync_group == 0, tf.float32)
        summed = context.all_reduce("SUM", [gradient * is_first for gradient, _ in pairs])
        return list(zip(summed, [variable for _, variable in pairs], strict=True))

    with strategy.scope():
        variable = tf.Variable([0.0, 0.0])
        optimizer = keras.optimizers.legacy.SGD(1.0, gradient_aggregator=first_only)

    @tf.function
    def step():
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            gradient = tf.cast(replica + 1, tf.float32) * tf.ones([2])
            optimizer.apply_gradients([(gradient, variable)])

        strategy.run(in_replica)

    step()
    np.testing.assert_array_equal(variable.numpy(), [-1.0, -1.0])
