"""LAMB of TensorFlow Addons, in `optimizers.LAMB`; gradients of the other optimizers of Addons."""

import pytest

pytest.importorskip("keras.src.engine", reason="TensorFlow Addons, which need Keras 2")

import keras
import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from support import oracle

import tf_adasum
from tf_adasum.optimizers import LAMB


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfa.optimizers.LAMB(0.1, weight_decay=0.1),
        lambda: tfa.optimizers.Lookahead(keras.optimizers.legacy.Adam(0.1)),
        lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9),
        lambda: LAMB(0.1),
    ],
    ids=["LAMB", "Lookahead", "SGD", "ours"],
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
        reference.apply_gradients([(tf.constant(oracle.adasum(own), tf.float32), alone)])
    for copy in strategy.experimental_local_results(variable):
        np.testing.assert_allclose(copy.numpy(), alone.numpy(), rtol=2e-6, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == 3
