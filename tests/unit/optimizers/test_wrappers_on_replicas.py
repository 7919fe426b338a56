"""Wrappers on two replicas of one process, against NumPy; for Keras 3 see tests/multi_worker."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions, optimizer_oracles, oracle

import tf_adasum
from tf_adasum.optimizers import LAMB, AdaScale, DeltaAdasum

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


def stepped(strategy, make, is_eager=False, is_built=False, empty=()):
    """Takes a step with each of `GRADIENTS`; returns the optimizer and the replicas' weights.

    Args:
        empty: the steps in which the second replica has no rows.
    """
    with strategy.scope():
        optimizer, variable = make(), tf.Variable(WEIGHTS)
        if is_built:
            keras_versions.build(optimizer, [variable])

    def in_replica(rows):
        gradient = tf.reduce_sum(rows, axis=0)
        optimizer.apply_gradients([(gradient, variable)])

    def step(rows):
        strategy.run(in_replica, args=(rows,))

    step = step if is_eager else tf.function(step)
    for number, gradients in enumerate(GRADIENTS):

        def rows_of(context, number=number, gradients=gradients):
            replica = context.replica_id_in_sync_group
            rows = gradients[replica : replica + 1]
            return tf.constant(rows[:0] if replica == 1 and number in empty else rows)

        step(strategy.experimental_distribute_values_from_function(rows_of))
    return optimizer, [own.numpy() for own in strategy.experimental_local_results(variable)]


def delta_by_hand(local_steps=1, decay=0.0, empty=(), average=None):
    """The replicas' weights after DeltaAdasum of SGD with momentum; and their moving average."""
    start = WEIGHTS.astype("float64")
    weights, velocities = [start, start], [0 * start, 0 * start]
    averages = start
    for number, gradients in enumerate(GRADIENTS):
        for replica, gradient in enumerate(gradients):
            if replica == 1 and number in empty:
                continue
            velocities[replica] = MOMENTUM * velocities[replica] - RATE * gradient
            weights[replica] = weights[replica] * (1 - decay * RATE) + velocities[replica]
        if (number + 1) % local_steps == 0:
            start = start + oracle.pairwise(weights[0] - start, weights[1] - start)
            weights = [start, start]
            if average is not None:
                averages = average * averages + (1 - average) * start
    return weights, averages


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
        _, weights = stepped(
            strategies["adasum"], lambda: OPTIMIZERS[name](wrap), is_eager, is_built
        )
        np.testing.assert_allclose(
            weights, delta_by_hand(local_steps, decay_of(name))[0], **FLOAT32
        )

    @pytest.mark.parametrize("local_steps", [1, 3])
    @pytest.mark.parametrize("name", ["new", "legacy", "decay"])
    def test_a_replica_without_rows_rests(self, strategies, name, local_steps):
        wrap = functools.partial(DeltaAdasum, local_steps=local_steps)
        optimizer, weights = stepped(
            strategies["adasum"], lambda: OPTIMIZERS[name](wrap), empty=(0, 4)
        )
        expected, _ = delta_by_hand(local_steps, decay_of(name), empty=(0, 4))
        np.testing.assert_allclose(weights, expected, **FLOAT32)
        assert optimizer.iterations.numpy() == len(GRADIENTS)

    @pytest.mark.parametrize("local_steps", [1, 4])
    def test_averages_are_of_the_combined_weights(self, strategies, local_steps):
        def make():
            inner = SGD(RATE, momentum=MOMENTUM, use_ema=True, ema_momentum=0.7)
            return DeltaAdasum(inner, local_steps=local_steps)

        optimizer, _ = stepped(strategies["adasum"], make)
        (average,) = optimizer.inner_optimizer._model_variables_moving_average
        local = strategies["adasum"].experimental_local_results(average)
        _, expected = delta_by_hand(local_steps, average=0.7)
        for own in local:
            np.testing.assert_allclose(own.numpy(), expected, **FLOAT32)

    @pytest.mark.parametrize("local_steps", [1, 2])
    def test_lamb(self, strategies, local_steps):
        wrap = functools.partial(DeltaAdasum, local_steps=local_steps)
        _, weights = stepped(strategies["adasum"], lambda: wrap(LAMB(0.1)))
        np.testing.assert_array_equal(*weights)
        assert np.abs(weights[0] - WEIGHTS).max() > 0.1


class TestAdaScale:
    @WAYS
    @pytest.mark.parametrize("name", OPTIMIZERS)
    @pytest.mark.filterwarnings("ignore:AdaScale around")
    def test_takes_the_scaled_rate(self, strategies, name, is_eager, is_built):
        wrap = functools.partial(AdaScale, smoothing=0.5)
        _, weights = stepped(strategies["mean"], lambda: OPTIMIZERS[name](wrap), is_eager, is_built)
        expected = optimizer_oracles.AdaScaleOracle(
            WEIGHTS, RATE, 2, MOMENTUM, smoothing=0.5, decay=decay_of(name)
        )
        for gradients in GRADIENTS:
            expected.step(gradients)
        np.testing.assert_allclose(weights, [expected.weights] * 2, **FLOAT32)

    def test_a_legacy_decay_is_refused(self):
        with pytest.raises(ValueError, match=r"counts iterations.* Received: decay=0\.1"):
            AdaScale(keras_versions.legacy_optimizer("SGD", RATE, decay=0.1))
