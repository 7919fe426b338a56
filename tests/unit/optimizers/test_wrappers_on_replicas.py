"""Wrappers on two replicas of one process, against NumPy; for Keras 3 see tests/multi_worker."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions, optimizer_oracles, oracle

import tf_adasum
from tf_adasum.optimizers import AdaScale, DeltaAdasum

if len(keras_versions.devices_of(2)) < 2:
    pytest.skip("tests/multi_worker has these, for Keras 3", allow_module_level=True)

SGD = keras.optimizers.SGD
RATE, MOMENTUM, DECAY = 0.1, 0.9, 0.3

random = np.random.default_rng(0)
GRADIENTS = (random.standard_normal((8, 2, 5)) + 0.7).astype("float32")
WEIGHTS = random.standard_normal(5).astype("float32")

# Eight steps of about 0.3 in float32, in another order of operations.
FLOAT32 = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def strategies():
    devices = keras_versions.devices_of(2)
    return {
        rule: tf_adasum.AdasumMirroredStrategy(devices=devices, aggregation=rule)
        for rule in ("adasum", "mean")
    }


def stepped(strategy, make, is_eager=False, is_built=False):
    """Takes a step with each of `GRADIENTS`; returns the replicas' weights."""
    with strategy.scope():
        optimizer, variable = make(), tf.Variable(WEIGHTS)
        if is_built:
            keras_versions.build(optimizer, [variable])

    def in_replica(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    def step(gradients):
        strategy.run(in_replica, args=(gradients,))

    step = step if is_eager else tf.function(step)
    for gradients in GRADIENTS:

        def of_replica(context, gradients=gradients):
            return tf.constant(gradients[context.replica_id_in_sync_group])

        step(strategy.experimental_distribute_values_from_function(of_replica))
    return [own.numpy() for own in strategy.experimental_local_results(variable)]


def delta_by_hand(local_steps=1, decay=0.0):
    """The replicas' weights after DeltaAdasum of SGD with momentum."""
    start = WEIGHTS.astype("float64")
    weights, velocities = [start, start], [0 * start, 0 * start]
    for number, gradients in enumerate(GRADIENTS):
        for replica, gradient in enumerate(gradients):
            velocities[replica] = MOMENTUM * velocities[replica] - RATE * gradient
            weights[replica] = weights[replica] * (1 - decay * RATE) + velocities[replica]
        if (number + 1) % local_steps == 0:
            start = start + oracle.pairwise(weights[0] - start, weights[1] - start)
            weights = [start, start]
    return weights


# Each gets a wrapper, without its optimizer.
OPTIMIZERS = {
    "new": lambda wrap: wrap(SGD(RATE, momentum=MOMENTUM)),
    "legacy": lambda wrap: wrap(keras_versions.legacy_optimizer("SGD", RATE, momentum=MOMENTUM)),
    "decay": lambda wrap: wrap(SGD(RATE, momentum=MOMENTUM, weight_decay=DECAY)),
    "loss scale": lambda wrap: keras_versions.LossScaleOptimizer(
        wrap(SGD(RATE, momentum=MOMENTUM))
    ),
}
WAYS = pytest.mark.parametrize(
    ("is_eager", "is_built"),
    [(True, False), (False, False), (False, True)],
    ids=["eager", "traced", "built and traced"],
)


def decay_of(name):
    return DECAY if name == "decay" else 0.0


class TestDeltaAdasum:
    @WAYS
    @pytest.mark.parametrize("local_steps", [1, 3])
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_combines_the_steps(self, strategies, name, local_steps, is_eager, is_built):
        wrap = functools.partial(DeltaAdasum, local_steps=local_steps)
        weights = stepped(strategies["adasum"], lambda: OPTIMIZERS[name](wrap), is_eager, is_built)
        np.testing.assert_allclose(weights, delta_by_hand(local_steps, decay_of(name)), **FLOAT32)


class TestAdaScale:
    @WAYS
    @pytest.mark.parametrize("name", OPTIMIZERS)
    @pytest.mark.filterwarnings("ignore:AdaScale around")
    def test_takes_the_scaled_rate(self, strategies, name, is_eager, is_built):
        wrap = functools.partial(AdaScale, smoothing=0.5)
        weights = stepped(strategies["mean"], lambda: OPTIMIZERS[name](wrap), is_eager, is_built)
        expected = optimizer_oracles.AdaScaleOracle(
            WEIGHTS, RATE, 2, MOMENTUM, smoothing=0.5, decay=decay_of(name)
        )
        for gradients in GRADIENTS:
            expected.step(gradients)
        np.testing.assert_allclose(weights, [expected.weights] * 2, **FLOAT32)

    def test_a_legacy_decay_is_refused(self):
        with pytest.raises(ValueError, match=r"counts iterations.* Received: decay=0\.1"):
            AdaScale(keras_versions.legacy_optimizer("SGD", RATE, decay=0.1))
