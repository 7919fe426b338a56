"""A hook into metrics of Keras 3."""

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizers import our_replica_context


@hooks.replaces(keras.metrics.Mean, "update_state")
def update_mean(original, self, values, sample_weight=None):
    """Ignore a scalar value of a replica without rows, because a loss of no rows is often NaN.

    A `train_step` or `test_step` passes such losses to its metrics. One NaN in the last batch would
    make the mean of the whole epoch NaN.
    """
    context = our_replica_context()
    is_empty = context.strategy.empty_replicas.is_empty if context else None
    if is_empty is None:
        return original(self, values, sample_weight)
    number = tf.convert_to_tensor(values)
    if number.shape.rank != 0:  # one value for each row, and there are no rows
        return original(self, values, sample_weight)
    weight = tf.cast(1 if sample_weight is None else sample_weight, self.dtype)
    weight = tf.where(is_empty, tf.zeros_like(weight), weight)
    return original(self, tf.where(is_empty, tf.zeros_like(number), number), weight)
