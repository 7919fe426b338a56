"""A hook into losses, and a constant for random seeds, for Keras 2 and 3."""

import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks, private_names
from tf_adasum.compat.keras.optimizers import marker_of

# This number is odd, so that no two replicas get the same seed. It is large, so that the seeds of
# the replicas look unrelated.
SEED_STRIDE = 0x9E3779B1


@hooks.replaces(private_names.losses, *private_names.SCALING_OF_LOSSES)
def scale_loss_for_distribution(original, value, /):
    """Do not divide losses by the number of replicas, because the rule needs undivided gradients.

    Keras divides losses that are means over rows, because it later sums the replicas' gradients.
    The division would also change the effect of gradient clipping.
    """
    return value if marker_of(tf.distribute.get_strategy()) else original(value)
