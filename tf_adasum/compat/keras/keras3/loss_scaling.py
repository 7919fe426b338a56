"""Hooks into the `LossScaleOptimizer` of Keras 3."""

import contextlib

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.optimizers import build
from tf_adasum.compat.keras.optimizers import (
    on_any_replica,
    our_replica_context,
    step_of_virtual_replicas,
)


@hooks.replaces(keras.optimizers.LossScaleOptimizer, "apply")
def apply_scaled(original, self, grads, trainable_variables=None):
    """Hand over the gradients of a micro-batch, if there are virtual replicas.

    Keras decides in each call whether to update, and waits for all replicas to do so.
    """
    virtual = step_of_virtual_replicas()
    with virtual.update() if virtual else contextlib.nullcontext():
        if not virtual or not virtual.hands_over:
            return original(self, grads, trainable_variables)
        build(self, trainable_variables)
        virtual.note("finite", self.check_finite(grads))
        scale = self.dynamic_scale
        unscaled = [grad if grad is None else keras.ops.divide(grad, scale) for grad in grads]
        return self.inner_optimizer.apply(unscaled, trainable_variables)


@hooks.replaces(keras.optimizers.LossScaleOptimizer, "check_finite")
def check_finite(original, self, grads):
    """Check that the gradients of all replicas are finite.

    Keras checks only the gradients of one replica, before any reduction. If only one replica
    overflowed, the replicas would diverge and wait for each other forever.
    """
    context = our_replica_context()
    if not context:
        return original(self, grads)
    finite = original(self, context.strategy._empty_replicas.zero_where_empty(grads))
    virtual = step_of_virtual_replicas()
    if virtual and virtual.hands_over:
        return finite
    if virtual:
        finite = tf.reduce_all(virtual.noted("finite", finite) > 0)
    return tf.logical_not(on_any_replica(tf.logical_not(finite)))
