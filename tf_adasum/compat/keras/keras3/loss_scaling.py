"""A hook into the `LossScaleOptimizer` of Keras 3."""

import contextlib

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.updates import build
from tf_adasum.compat.keras.optimizers import at_places, cond, on_any_replica, our_replica_context


@hooks.replaces(keras.optimizers.LossScaleOptimizer, "apply")
def apply_scaled(original, self, grads, trainable_variables=None):
    """Take a step only if the gradients of all replicas are finite.

    Keras checks only the gradients of one replica, before any reduction. If only one replica
    overflowed, the replicas would diverge and wait for each other forever. With virtual replicas,
    hand over the gradients of a micro-batch, and decide in the last one.
    """
    context = our_replica_context()
    if not context:
        return original(self, grads, trainable_variables)
    virtual = context.strategy._virtual_replicas.step
    with virtual.update() if virtual else contextlib.nullcontext():
        build(self, trainable_variables)
        grads = context.strategy._empty_replicas.zero_where_empty(grads)
        finite = self.check_finite(grads)
        if virtual and virtual.hands_over:
            virtual.note("finite", finite)
            scale = self.dynamic_scale
            unscaled = [grad if grad is None else keras.ops.divide(grad, scale) for grad in grads]
            return self.inner_optimizer.apply(unscaled, trainable_variables)
        if virtual:
            finite = tf.reduce_all(virtual.noted("finite", finite) > 0)
        are_present = [grad is not None for grad in grads]

        def take(*present):
            own = at_places(are_present, present)
            self._stateful_handle_finite_grads(own, trainable_variables)

        def skip(*_):
            self._stateful_handle_non_finite_grads()

        is_finite = tf.logical_not(on_any_replica(tf.logical_not(finite)))
        present = [grad for grad in grads if grad is not None]
        return cond(context, is_finite, take, skip, present)
