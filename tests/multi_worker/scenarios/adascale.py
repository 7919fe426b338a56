"""AdaScale on gradients that are given, over replicas and accumulation steps."""

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import Variable, copies_of

from scenarios.basics import use_rule
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import AdaScale

SHAPES = [(7, 3), (5,)]
STEPS = 50
ESTIMATES = ["gain", "scale_invariant_steps", "gradient_variance", "gradient_squared_norm"]


def gradients_of(count):
    """For each variable [STEPS, count, …], float32: a common part that shrinks, and noise."""
    random = np.random.default_rng(5)
    common = [random.standard_normal(shape) for shape in SHAPES]
    shrinking = np.linspace(1, 0.1, STEPS)
    return [
        (
            np.multiply.outer(shrinking, own)[:, None]
            + random.standard_normal((STEPS, count, *own.shape))
        ).astype("float32")
        for own in common
    ]


def initial_values():
    random = np.random.default_rng(6)
    return [random.standard_normal(shape).astype("float32") for shape in SHAPES]


def steps(strategy, count, kind="own", momentum=0.9, schedule=False, **options):
    """Take steps on `count` gradients each; return the weights, and after each step the estimates.

    Args:
        strategy: the workers' strategy, or None.
        count: how many gradients are in a step: replicas x accumulation.
        kind: "own" for the given strategy, "mirrored" for a `tf.distribute.MirroredStrategy`.
        momentum: of SGD.
        schedule: whether the learning rate decays, or is 0.05.
        options: of AdaScale.
    """
    if kind == "mirrored":
        devices = [device.name for device in tf.config.list_logical_devices("CPU")]
        strategy = tf.distribute.MirroredStrategy(devices)
    elif strategy:
        use_rule(strategy, "mean")
    else:
        strategy = tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    accumulation = count // replicas
    gradients = [tf.constant(gradient) for gradient in gradients_of(count)]
    learning_rate = 0.05
    if schedule:
        learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay(
            [20, 60], [0.1, 0.05, 0.01]
        )
    with strategy.scope():
        variables = [Variable(value, name="v") for value in initial_values()]
        accumulate = {"gradient_accumulation_steps": accumulation} if accumulation > 1 else {}
        inner = keras.optimizers.SGD(learning_rate, momentum=momentum, **accumulate)
        optimizer = AdaScale(inner, **options)
        keras_compat.build(optimizer, variables)

    @tf.function
    def step(number, micro_step):
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = tf.cast(replica, tf.int32) * accumulation + micro_step
            # As Keras's losses, which TensorFlow's strategy sums.
            divisor = replicas if kind == "mirrored" else 1
            keras_compat.apply(
                optimizer, [gradient[number][own] / divisor for gradient in gradients], variables
            )

        strategy.run(in_replica)

    estimates = []
    for number in range(STEPS):
        for micro_step in range(accumulation):
            step(tf.constant(number), tf.constant(micro_step))
        estimates.append([getattr(optimizer, name) for name in ESTIMATES])
    copies = zip(*(copies_of(strategy, variable) for variable in variables), strict=True)
    return {
        "estimates": np.array(estimates),
        "weights": [np.concatenate([v.numpy().ravel() for v in copy]) for copy in copies],
        "iterations": int(optimizer.iterations.numpy()),
    }
