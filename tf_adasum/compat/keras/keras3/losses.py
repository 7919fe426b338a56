"""Hooks into losses of Keras 3."""

import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.layers import of_all_replicas, sum_of_all_replicas
from tf_adasum.compat.keras.optimizers import our_replica_context
from tf_adasum.compat.keras.private_names_keras3 import BaseTrainer, losses


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
        return keeping_losses(of_all_replicas, loss)
    if reduction == "mean_with_sample_weight":
        weights = losses.apply_mask(sample_weight, mask, values.dtype, reduction)
    else:
        weights = mask
    return loss if weights is None else keeping_losses(of_all_replicas, loss, _sum(weights))


# From the id of a replica to the model whose loss it computes, or None.
_models = {}


@hooks.replaces(BaseTrainer, "compute_loss")
def compute_loss(original, self, *args, **kwargs):
    """Let the sum of a vector of losses cover the rows of all replicas.

    Without a reduction, the loss is a vector, and Keras computes the gradient of its sum.
    """
    if not our_replica_context():
        return original(self, *args, **kwargs)
    replica = tensorflow_compat.replica()
    outer, _models[replica] = _models.get(replica), self
    try:
        loss = original(self, *args, **kwargs)
    finally:
        _models[replica] = outer
    is_vector = tf.is_tensor(loss) and loss.shape.rank != 0
    return sum_of_all_replicas(loss) if is_vector else loss


def keeping_losses(exchange, *arguments):
    """Call a function that exchanges values, and keep the losses that layers have added.

    The next local replica runs when this replica exchanges a value. It calls the same layers, which
    then hold its losses.
    """
    model = _models.get(tensorflow_compat.replica())
    layers = list(model._flatten_layers()) if model else []
    added = [list(layer._losses) for layer in layers]
    result = exchange(*arguments)
    for layer, own in zip(layers, added, strict=True):
        layer._losses[:] = own
    return result


def is_computing_loss():
    """Return whether this replica computes the loss of a model."""
    return _models.get(tensorflow_compat.replica()) is not None


def _sum(weights):
    return tf.reduce_sum(tf.cast(weights, tf.float32))
