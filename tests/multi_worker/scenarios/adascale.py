"""AdaScale on gradients that are given, over replicas and accumulation steps."""

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import copies_of

from scenarios.basics import use_rule
from scenarios.given_gradients import SHAPES, built
from tf_adasum.optimizers import AdaScale

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


def steps(strategy, count, kind="own", momentum=0.9, schedule=False):
    """Take steps on `count` gradients each; return the weights, and after each step the estimates.

    Args:
        strategy: the workers' strategy.
        count: how many gradients are in a step: replicas x accumulation.
        kind: "own" for the given strategy, "mirrored" for a `tf.distribute.MirroredStrategy`.
        momentum: of SGD.
        schedule: whether the learning rate decays, or is 0.05.
    """
    if kind == "mirrored":
        devices = [device.name for device in tf.config.list_logical_devices("CPU")]
        strategy = tf.distribute.MirroredStrategy(devices)
    else:
        use_rule(strategy, "mean")
    replicas = strategy.num_replicas_in_sync
    accumulation = count // replicas
    # [STEPS * accumulation, replicas, …]; TensorFlow's strategy sums, as Keras's losses need it.
    gradients = [
        own.reshape(STEPS, replicas, accumulation, *own.shape[2:])
        .swapaxes(1, 2)
        .reshape(-1, replicas, *own.shape[2:])
        / np.float32(replicas if kind == "mirrored" else 1)
        for own in gradients_of(count)
    ]

    def make():
        decay = keras.optimizers.schedules.PiecewiseConstantDecay([20, 60], [0.1, 0.05, 0.01])
        accumulate = {"gradient_accumulation_steps": accumulation} if accumulation > 1 else {}
        rate = decay if schedule else 0.05
        return AdaScale(keras.optimizers.SGD(rate, momentum=momentum, **accumulate))

    variables, optimizer, step = built(strategy, make, gradients)
    estimates = []
    for number in range(STEPS * accumulation):
        step(tf.constant(number))
        if (number + 1) % accumulation == 0:
            estimates.append([getattr(optimizer, name) for name in ESTIMATES])
    copies = zip(*(copies_of(strategy, variable) for variable in variables), strict=True)
    return {
        "estimates": np.array(estimates),
        "weights": [np.concatenate([v.numpy().ravel() for v in copy]) for copy in copies],
        "iterations": int(optimizer.iterations.numpy()),
    }
