"""Hooks into losses, layers and random seeds of Keras 3."""

import weakref

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.private_names import (
    GLOBAL_SEEDS,
    BaseTrainer,
    losses,
    nn,
    seed_generators,
)
from tf_adasum.compat.keras.layers import (
    SEED_STRIDE,
    of_all_replicas,
    sum_of_all_replicas,
)
from tf_adasum.compat.keras.optimizers import our_replica_context

# Argument of `add_weight` with which Keras does not cast the variable in mixed precision.
WITHOUT_AUTOCAST = {"autocast": False}


@hooks.replaces(losses, "reduce_weighted_values")
def reduce_weighted_values(
    original, values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None
):
    """Let sums, and means over masked or weighted rows, cover the rows of all replicas.

    If the static shape of the losses shows that there are no rows, Keras would return a vector. If
    the static shape does not show it, Keras returns 0.
    """
    if not our_replica_context():
        return original(values, sample_weight, mask, reduction, dtype)
    values = tf.convert_to_tensor(values)
    if tuple(values.shape) == (0,) and reduction not in (None, "none"):
        shape = [0, 1]
        values = tf.reshape(values, shape)
        sample_weight = None if sample_weight is None else tf.reshape(sample_weight, shape)
        mask = None if mask is None else tf.reshape(mask, shape)
    loss = original(values, sample_weight, mask, reduction, dtype)
    if values.shape.rank == 0 or reduction in (None, "none"):
        return loss
    if reduction == "sum":
        return _of_all_replicas(loss)
    if reduction == "mean_with_sample_weight":
        weights = losses.apply_mask(sample_weight, mask, values.dtype, reduction)
    else:
        weights = mask
    return loss if weights is None else _of_all_replicas(loss, _sum(weights))


# From the id of a replica to the model whose loss it computes.
_models = {}


@hooks.replaces(BaseTrainer, "compute_loss")
def compute_loss(original, self, *args, **kwargs):
    """Let the sum of a vector of losses cover the rows of all replicas.

    Without a reduction, the loss is a vector, and Keras computes the gradient of its sum.
    """
    if not our_replica_context():
        return original(self, *args, **kwargs)
    _models[tensorflow_compat.replica()] = self
    try:
        loss = original(self, *args, **kwargs)
    finally:
        del _models[tensorflow_compat.replica()]
    is_vector = tf.is_tensor(loss) and loss.shape.rank != 0
    return sum_of_all_replicas(loss) if is_vector else loss


def _of_all_replicas(*arguments):
    """Call `of_all_replicas`, and keep the losses that layers have added in this replica.

    The next local replica runs when this replica exchanges a value. It calls the same layers, which
    then hold its losses.
    """
    model = _models.get(tensorflow_compat.replica())
    layers = list(model._flatten_layers()) if model else []
    added = [list(layer._losses) for layer in layers]
    loss = of_all_replicas(*arguments)
    for layer, own in zip(layers, added, strict=True):
        layer._losses[:] = own
    return loss


def _sum(weights):
    return tf.reduce_sum(tf.cast(weights, tf.float32))


@hooks.replaces(keras.layers.BatchNormalization, "_moments")
def moments(original, self, inputs, mask):
    """Use the moving moments if there are no rows, because moments of no rows are NaN."""
    own = original(self, inputs, mask)
    context = our_replica_context()
    is_empty = context.strategy.empty_replicas.is_empty if context else None
    if is_empty is None or self.synchronized:  # `own` covers the rows of all replicas
        return own
    moving = (self.moving_mean, self.moving_variance)
    return tuple(
        tf.where(is_empty, tf.cast(before, value.dtype), value)
        for before, value in zip(moving, own, strict=True)
    )


@hooks.replaces(
    nn, "conv", "depthwise_conv", "separable_conv", "conv_transpose", "max_pool", "average_pool"
)
def convolve_or_pool(original, inputs, *args, **kwargs):
    """On CPUs without XLA, give a replica without rows a row of zeros.

    Without rows, TensorFlow's CPU kernels of the gradients raise an error or crash the process.
    """
    context = our_replica_context()
    is_empty = context.strategy.empty_replicas.is_empty if context else None
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
    if not context or context.num_replicas_in_sync == 1:
        return seed
    # A seed is a key and a counter. Another key gives other numbers. Replica 0 keeps its key.
    key_of_replica = tf.cast(context.replica_id_in_sync_group, tf.int64) * SEED_STRIDE
    offset = tf.stack([tf.cast(key_of_replica % 2**31, seed.dtype), tf.zeros([], seed.dtype)])
    return tf.bitwise.bitwise_xor(seed, offset)


# For each strategy: the result of `global_seed_token` when its generator was created, and this
# generator. It creates the random numbers of `keras.random` without a seed.
_global_seeds = weakref.WeakKeyDictionary()


@hooks.replaces(seed_generators, "global_seed_generator", feature=GLOBAL_SEEDS)
def global_seed_generator(original):
    """Create one generator for all replicas of a strategy, for `keras.random` without a seed.

    Keras creates one generator for each thread, and each trace runs the replicas in new threads. So
    the second trace of a step would create variables, which `tf.function` refuses.
    """
    context = our_replica_context()
    if not context:
        return original()
    seeding = tensorflow_compat.global_seed_token()
    known, generator = _global_seeds.get(context.strategy, (None, None))
    if generator is None or known is not seeding:
        with tf.init_scope():
            generator = keras.random.SeedGenerator(tensorflow_compat.global_seed())
        _global_seeds[context.strategy] = seeding, generator
    return generator
