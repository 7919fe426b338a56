"""A hook into metrics of Keras 3."""

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.losses import is_computing_loss
from tf_adasum.compat.keras.losses import weight_of_replica
from tf_adasum.compat.keras.optimizers import our_replica_context


@hooks.replaces(keras.metrics.Mean, "update_state")
def update_mean(original, self, values, sample_weight=None):
    """Ignore the loss of a replica without rows, because it is often NaN.

    A `train_step` or `test_step` passes such losses to its metrics. One NaN in the last batch would
    make the mean of the whole epoch NaN. A loss is a scalar, or has a scalar weight. If a model
    has several outputs, Keras gives each batch the same weight in the losses of the outputs, so
    the replicas' losses are weighted by their rows.
    """
    context = our_replica_context()
    if not context:
        return original(self, values, sample_weight)
    rows = context.strategy._empty_replicas
    number = tf.convert_to_tensor(values)
    if sample_weight is None and number.shape.rank == 0 and is_computing_loss():  # of an output
        sample_weight = weight_of_replica()
    is_empty = rows.is_empty
    if is_empty is None:
        return original(self, values, sample_weight)
    if number.shape.rank != 0:
        if sample_weight is None or tf.convert_to_tensor(sample_weight).shape.rank != 0:
            return original(self, values, sample_weight)  # one value for each row
        number = tf.reduce_mean(number)
    weight = tf.cast(1 if sample_weight is None else sample_weight, self.dtype)
    weight = tf.where(is_empty, tf.zeros_like(weight), weight)
    return original(self, tf.where(is_empty, tf.zeros_like(number), number), weight)
