"""Hooks into losses and the random seeds of layers of Keras 2."""

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.losses import of_all_replicas
from tf_adasum.compat.keras.optimizers import our_replica_context
from tf_adasum.compat.keras.private_names_keras2 import RandomGenerator, losses

# Argument of `add_weight` with which Keras does not cast the variable in mixed precision.
WITHOUT_AUTOCAST = {"experimental_autocast": False}


def share_global_seeds(strategy):
    """Do nothing, because Keras 2 has no generator for each thread."""


@hooks.replaces(losses, "reduce_weighted_loss")
def reduce_weighted_loss(original, weighted_losses, *args, **kwargs):
    """Let sums of losses cover the rows of all replicas."""
    loss = original(weighted_losses, *args, **kwargs)
    is_sum = keras.losses.Reduction.SUM in (*args, *kwargs.values())
    return of_all_replicas(loss) if is_sum else loss


@hooks.replaces(RandomGenerator, "make_legacy_seed")
def make_legacy_seed(original, self):
    """Mix the replica's id into the seed, so that dropout differs between workers."""
    seed = original(self)
    context = our_replica_context()
    if not context:
        return seed
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    if replica is None:  # in a separate tf.function: a worker's functions have different layers
        replica = tensorflow_compat.first_replica(context.strategy.extended)
    if replica == 0:
        return seed
    if seed is None:
        if tensorflow_compat.global_seed() is None:
            return None
        _, seed = tf.compat.v1.random.get_seed(None)  # the seed that the operation would use
    return int((seed + replica * tensorflow_compat.SEED_STRIDE) % (2**31 - 1))
