"""Optimizers under a strategy and alone, on gradients that are given."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from support import keras_versions, oracle
from support.keras_versions import LossScaleOptimizer

from scenarios import given_gradients
from scenarios.basics import on_replicas
from scenarios.given_gradients import SHAPES, built, kept_by, new_variables
from tf_adasum.compat import keras as keras_compat

STEPS = 4
SCALE = 1024.0  # a power of two: scaling changes no digit

# How each option of the table configures an optimizer.
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
}


def make(name, option):
    optimizer = getattr(keras.optimizers, name)(learning_rate=0.1, **OPTIONS[option])
    if option == "mixed_precision":
        return LossScaleOptimizer(optimizer, initial_scale=SCALE)
    return optimizer


def gradients_of(replicas, option):
    """For each variable [STEPS, replicas, …], float32; with mixed precision they are scaled."""
    gradients = given_gradients.gradients_of(replicas, STEPS)
    if option == "mixed_precision":
        gradients = [gradient * np.float32(SCALE) for gradient in gradients]
        gradients[0][-1, replicas - 1, 0] = np.inf  # in the last step one replica overflows
    return gradients


def apply(strategy, name, option):
    """STEPS steps on each replica's own gradients; returns all variables on each local replica."""
    gradients = gradients_of(strategy.num_replicas_in_sync, option)
    variables, optimizer, step = built(strategy, lambda: make(name, option), gradients)
    for number in range(STEPS):
        step(tf.constant(number))
    return on_replicas(strategy, [*variables, *kept_by(optimizer)])


def reference(replicas, name, option):
    """The same without a strategy, on the Adasum of the replicas' gradients in float64.

    Clipping is each replica's own, before; with Keras 2 that of what has been combined. Where
    gradients are accumulated, every micro-step gets the mean of its group: accumulating these gives
    it back.
    """
    gradients = [g.astype(np.float64) for g in gradients_of(replicas, option)]
    steps = OPTIONS[option].get("gradient_accumulation_steps", 1)
    groups = [g.reshape(STEPS // steps, steps, *g.shape[1:]) for g in gradients]
    gradients = [np.repeat(group.mean(axis=1), steps, axis=0) for group in groups]
    variables, optimizer = new_variables(), make(name, option)
    if not keras_versions.IS_KERAS_2:
        for number, replica in itertools.product(range(STEPS), range(replicas)):
            own = [gradient[number, replica] for gradient in gradients]
            for values, clipped in zip(own, optimizer._clip_gradients(own), strict=True):
                values[...] = clipped
        for rule in ("clipnorm", "global_clipnorm", "clipvalue"):
            setattr(optimizer, rule, None)
    keras_compat.build(optimizer, variables)
    for number in range(STEPS):
        combined = [oracle.adasum(g[number].reshape(replicas, -1)) for g in gradients]
        shaped = [
            tf.constant(own.reshape(shape), tf.float32)
            for own, shape in zip(combined, SHAPES, strict=True)
        ]
        keras_compat.apply(optimizer, shaped, variables)
    return [variable.numpy() for variable in [*variables, *kept_by(optimizer)]]
