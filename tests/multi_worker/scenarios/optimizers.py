"""Optimizers under a strategy and alone, on gradients that are given."""

import keras
import numpy as np
import tensorflow as tf
from support import oracle, stacks
from support.stacks import LossScaleOptimizer, Variable, copies_of

from scenarios.basics import scope, use_rule
from tf_adasum.compat import keras as keras_compat

STEPS = 4
SHAPES = [(4, 3), (5,)]
SCALE = 1024.0  # a power of two: scaling changes no digit

# How each column of the table configures an optimizer.
OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.3},
    "weight_decay": {"weight_decay": 0.1},
    "loss_scale_factor": {"loss_scale_factor": 4.0},
    "accumulate": {"gradient_accumulation_steps": 2},
    "ema": {"use_ema": True, "ema_momentum": 0.5},
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "accumulate_ema_clip": {
        "gradient_accumulation_steps": 2,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 4,
        "clipnorm": 0.5,
    },
    "mixed_precision": {},
    "mixed_precision_accumulate": {"gradient_accumulation_steps": 2},
}


def make(name, column):
    optimizer = getattr(keras.optimizers, name)(learning_rate=0.1, **OPTIONS[column])
    if column.startswith("mixed_precision"):
        return LossScaleOptimizer(optimizer, initial_scale=SCALE)
    return optimizer


def gradients_of(replicas, column):
    """For each variable [STEPS, replicas, …], float32; with mixed precision they are scaled."""
    random = np.random.default_rng(11)
    gradients = [
        (random.standard_normal((STEPS, replicas, *shape)) + 0.5).astype("float32")
        for shape in SHAPES
    ]
    if column.startswith("mixed_precision"):
        gradients = [gradient * np.float32(SCALE) for gradient in gradients]
        gradients[0][-1, replicas - 1, 0] = np.inf  # in the last step one replica overflows
    return gradients


def initial_values():
    random = np.random.default_rng(12)
    return [random.standard_normal(shape).astype("float32") for shape in SHAPES]


def apply(strategy, name, column):
    """STEPS steps on each replica's own gradients; returns all variables on each local replica."""
    use_rule(strategy, "adasum")
    gradients = [tf.constant(g) for g in gradients_of(strategy.num_replicas_in_sync, column)]
    with scope(strategy):
        variables = [Variable(value, name="v") for value in initial_values()]
        optimizer = make(name, column)
        keras_compat.build(optimizer, variables)

    @tf.function(autograph=False)
    def step(number):
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            keras_compat.apply(
                optimizer, [gradient[number][replica] for gradient in gradients], variables
            )

        strategy.run(in_replica)

    for number in range(STEPS):
        step(tf.constant(number))
    return {
        f"{index}.{local}": copy.numpy()
        for index, variable in enumerate([*variables, *state(optimizer)])
        for local, copy in enumerate(copies_of(strategy, variable))
    }


def state(optimizer):
    """What the optimizer keeps; accumulators differ from replica to replica until they are used."""
    return [
        v
        for v in keras_compat.all_variables(optimizer)
        if "accumulator" not in keras_compat.path_of(v)
    ]


def reference(replicas, name, column):
    """The same without a strategy, on the Adasum of the replicas' gradients in float64.

    Clipping is each replica's own, before; with Keras 2 that of what has been combined. Where
    gradients are accumulated, every micro-step gets the mean of its group: accumulating these gives
    it back.
    """
    options = OPTIONS[column]
    gradients = [g.astype(np.float64) for g in accumulated(replicas, column)]
    clips_each = not stacks.IS_KERAS_2
    if clips_each:
        gradients = [clipped(g, options) for g in gradients]
    if clips_each and "global_clipnorm" in options:
        norms = np.sqrt(sum(np.sum(g**2, axis=tuple(range(2, g.ndim))) for g in gradients))
        factors = np.minimum(1, options["global_clipnorm"] / norms)
        gradients = [g * factors.reshape(factors.shape + (1,) * (g.ndim - 2)) for g in gradients]
    variables = [Variable(value, name="v") for value in initial_values()]
    optimizer = make(name, column)
    if clips_each:
        for rule in ("clipnorm", "global_clipnorm", "clipvalue"):
            setattr(optimizer, rule, None)
    keras_compat.build(optimizer, variables)
    for number in range(STEPS):
        combined = [
            oracle.adasum([own.ravel() for own in g[number]]).reshape(g.shape[2:])
            for g in gradients
        ]
        keras_compat.apply(optimizer, [tf.constant(g, tf.float32) for g in combined], variables)
    return [variable.numpy() for variable in [*variables, *state(optimizer)]]


def accumulated(replicas, column):
    gradients = gradients_of(replicas, column)
    steps = OPTIONS[column].get("gradient_accumulation_steps")
    if not steps:
        return gradients
    groups = [g.astype(np.float64).reshape(STEPS // steps, steps, *g.shape[1:]) for g in gradients]
    if column.startswith("mixed_precision"):
        # The overflow is the last micro-step: it is skipped, and its group never completed.
        for group in groups:
            group[-1, 0] = group[-1, 1] = np.where(np.isfinite(group[-1, 0]), group[-1, 0], 0)
        means = [np.repeat(g.mean(axis=1), steps, axis=0) for g in groups]
        means[0][-1, -1, 0] = np.inf
        return means
    return [np.repeat(g.mean(axis=1), steps, axis=0) for g in groups]


def clipped(gradients, options):
    """Each replica's gradient [STEPS, replicas, …] clipped as `clipnorm` or `clipvalue` say."""
    if "clipnorm" in options:
        axes = tuple(range(2, gradients.ndim))
        norms = np.sqrt(np.sum(gradients**2, axis=axes, keepdims=True))
        return gradients * np.minimum(1, options["clipnorm"] / norms)
    if "clipvalue" in options:
        return np.clip(gradients, -options["clipvalue"], options["clipvalue"])
    return gradients
