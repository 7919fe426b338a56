"""Hooks into layers and random seeds of Keras 3."""

import weakref

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.losses import weight_of_replica, with_gradient_times
from tf_adasum.compat.keras.optimizers import our_replica_context
from tf_adasum.compat.keras.private_names_keras3 import GLOBAL_SEED_GENERATOR, global_state, nn

# Argument of `add_weight` with which Keras does not cast the variable in mixed precision.
WITHOUT_AUTOCAST = {"autocast": False}


@hooks.replaces(keras.layers.BatchNormalization, "_moments")
def moments(original, self, inputs, mask):
    """Synchronize the moments of a masked input, and use the moving moments if no row counts.

    With a mask, Keras ignores `synchronized`. Moments of no rows are NaN or zeros.

    Through synchronized moments, all replicas' losses depend on a replica's rows. The rule mean
    weights gradients by the replica that sends them. So a gradient that comes from other replicas
    is weighted here.
    """
    context = our_replica_context()
    if not context:
        return original(self, inputs, mask)
    is_weighted = self.synchronized and context.strategy.aggregation.is_mean
    weight = weight_of_replica() if is_weighted else None
    if weight is None:
        return _moments(original, self, inputs, mask)
    inputs = with_gradient_times(inputs, tf.math.divide_no_nan(1.0, weight))
    own = _moments(original, self, inputs, mask)
    return tuple(with_gradient_times(moment, weight) for moment in own)


def _moments(original, layer, inputs, mask):
    if mask is None:
        own, length = original(layer, inputs, mask), tf.convert_to_tensor(inputs).shape[0]
        if layer.synchronized or length:  # `own` covers the rows of all replicas
            return own
        has_rows = tf.shape(inputs)[0] > 0
    elif layer.synchronized:
        own, has_rows = _moments_of_all(inputs, mask, layer._reduction_axes)
    else:
        own, has_rows = original(layer, inputs, mask), tf.reduce_any(tf.cast(mask, tf.bool))
    moving = (layer.moving_mean, layer.moving_variance)
    return tuple(
        tf.where(has_rows, value, tf.cast(before, value.dtype))
        for before, value in zip(moving, own, strict=True)
    )


def _moments_of_all(inputs, mask, axes):
    """Return the moments of a masked input over all replicas, and whether any row counts."""

    def total(values):
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.reduce_sum(values, axes, keepdims=True))

    mask = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
    count = total(tf.cast(mask, inputs.dtype))
    mean = total(tf.where(mask, inputs, 0)) / (count + keras.config.epsilon())
    squares = total(tf.where(mask, tf.square(inputs - mean), 0))
    variance = squares / (count + keras.config.epsilon())
    return (tf.squeeze(mean), tf.squeeze(variance)), tf.reduce_max(count) > 0


# Keras 3.11 has no adaptive pooling.
NEWER = [name for name in ["adaptive_max_pool"] if hasattr(nn, name)]


@hooks.replaces(
    nn, "conv", "depthwise_conv", "separable_conv", "conv_transpose", "max_pool", *NEWER
)
def convolve_or_pool(original, inputs, *args, **kwargs):
    """On CPUs without XLA, give a replica without rows a row of zeros.

    Without rows, TensorFlow's CPU kernels of the gradients raise an error, crash the process, or
    return gradients that are not zero, and `conv` with a bias and an activation returns a tensor of
    its inputs' shape. (`average_pool` needs no help.)
    """
    context = our_replica_context()
    is_empty = context.strategy._empty_replicas.is_empty if context else None
    has_own_kernels = tensorflow_compat.compiles_with_xla() or (
        context and "CPU" not in context.strategy.extended.worker_devices[0]
    )
    if is_empty is None or has_own_kernels:
        return original(inputs, *args, **kwargs)
    inputs = tf.convert_to_tensor(inputs)
    is_empty = tf.logical_and(is_empty, tf.equal(tf.shape(inputs)[0], 0))

    def row_of_zeros():
        return tf.zeros([1, *tf.unstack(tf.shape(inputs)[1:])], inputs.dtype)

    # If there are rows, `tf.cond` returns the tensors unchanged, without a copy.
    padded = tf.cond(is_empty, row_of_zeros, lambda: inputs)
    outputs = original(tf.ensure_shape(padded, [None, *inputs.shape[1:]]), *args, **kwargs)
    own = tf.cond(is_empty, lambda: outputs[:0], lambda: outputs)
    return tf.ensure_shape(own, [None, *outputs.shape[1:]])


@hooks.replaces(keras.random.SeedGenerator, "next")
def next_seed(original, self, ordered=True):
    """Mix the replica's id into the seed, so that dropout differs between replicas."""
    seed = original(self, ordered)
    context = our_replica_context()
    if not context or context.strategy.num_virtual_replicas == 1:
        return seed
    step = context.strategy._virtual_replicas.step
    number = step.number if step else context.replica_id_in_sync_group
    # A seed is a key and a counter. Another key gives other numbers. Replica 0 keeps its key.
    key_of_replica = tf.cast(number, tf.int64) * tensorflow_compat.SEED_STRIDE
    offset = tf.stack([tf.cast(key_of_replica % 2**31, seed.dtype), tf.zeros([], seed.dtype)])
    return tf.bitwise.bitwise_xor(seed, offset)


class GlobalSeeds:
    """Creates the seeds of `keras.random` without a seed, for all replicas of a strategy."""

    def __init__(self):
        self._seeding = self._generator = None

    def next(self, ordered=True):
        """Return a new seed."""
        seeding = tensorflow_compat.global_seed_token()
        if self._generator is None or self._seeding is not seeding:
            with tf.init_scope():
                self._generator = keras.random.SeedGenerator(tensorflow_compat.global_seed())
            self._seeding = seeding
        return self._generator.next(ordered)


_global_seeds = weakref.WeakKeyDictionary()  # the `GlobalSeeds` of each strategy


def share_global_seeds(strategy):
    """Let the thread of this replica use the strategy's generator of seeds for `keras.random`.

    Keras creates one generator for each thread, and each trace runs the replicas in new threads. So
    the second trace of a step would create variables, which `tf.function` refuses.
    """
    seeds = _global_seeds.setdefault(strategy, GlobalSeeds())
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, seeds)
