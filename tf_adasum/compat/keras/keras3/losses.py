"""Hooks into losses of Keras 3."""

import collections

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.losses import of_all_replicas, sum_of_all_replicas
from tf_adasum.compat.keras.optimizers import our_replica_context
from tf_adasum.compat.keras.private_names_keras3 import BaseTrainer, losses
from tf_adasum.compat.thread_flag import ThreadFlag


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
        return of_all_replicas(loss)
    if reduction == "mean_with_sample_weight":
        weights = losses.apply_mask(sample_weight, mask, values.dtype, reduction)
    else:
        weights = mask
    if weights is None:
        return loss
    return of_all_replicas(loss, tf.reduce_sum(tf.cast(weights, tf.float32)))


# Whether the replica of this thread computes the loss of a model.
_computes_loss = ThreadFlag()


@hooks.replaces(BaseTrainer, "compute_loss")
def compute_loss(original, self, *args, **kwargs):
    """Let the sum of a vector of losses cover the rows of all replicas.

    Without a reduction, the loss is a vector, and Keras computes the gradient of its sum.
    """
    if not our_replica_context() or _computes_loss.value:
        return original(self, *args, **kwargs)
    with _computes_loss.within():
        loss = original(self, *args, **kwargs)
    is_vector = tf.is_tensor(loss) and loss.shape.rank != 0
    return sum_of_all_replicas(loss) if is_vector else loss


def is_computing_loss():
    """Return whether this replica computes the loss of a model."""
    return bool(_computes_loss.value)


class LossesOfReplicas(collections.UserList):
    """The list of the losses that a layer has added. Each replica has a list of its own.

    Args:
        losses: the losses that were added outside of the replicas.
    """

    def __init__(self, losses):
        self._lists = {None: list(losses)}  # by the id of the replica

    @property
    def data(self):
        """The list of this replica, or the list of the code outside of the replicas."""
        replica = tensorflow_compat.replica() if our_replica_context() else None
        return self._lists.setdefault(replica, [])

    def __getitem__(self, index):
        """Return a loss, or a list of losses."""
        return self.data[index]


@hooks.replaces(keras.layers.Layer, "add_loss")
def add_loss(original, self, loss):
    """Give each replica a list of its own for the losses that a layer adds.

    When a replica exchanges a value, the next local replica runs. It calls the same layers, so the
    first replica would find the losses of the other one.
    """
    if our_replica_context() and not isinstance(self._losses, LossesOfReplicas):
        self.__dict__["_losses"] = LossesOfReplicas(self._losses)
    return original(self, loss)
