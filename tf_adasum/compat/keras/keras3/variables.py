"""Hooks into variables of Keras 3."""

import weakref

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizers import our_replica_context


@hooks.replaces(keras.Variable, "__float__", "__int__", feature="float(variable), int(variable)")
def to_number(original, self):
    """Convert a variable that has a copy on each replica, such as `optimizer.learning_rate`.

    Python cannot convert TensorFlow's distributed variables, only their value.
    """
    value = self.value
    if not isinstance(value, tf.distribute.DistributedValues) or not tf.executing_eagerly():
        return original(self)
    return {"__float__": float, "__int__": int}[original.__name__](value.numpy())


# For each strategy: for each replica, by their ids, the variables that it has assigned.
_assigned = weakref.WeakKeyDictionary()


@hooks.replaces(keras.Variable, "assign")
def assign(original, self, value):
    """Remember the variables that a replica assigns, also in the forward pass."""
    if context := our_replica_context():
        of_replicas = _assigned.setdefault(context.strategy, {})
        of_replicas.setdefault(replica_of(context), weakref.WeakValueDictionary())[id(self)] = self
    return original(self, value)


def take_assigned():
    """Return the variables that this replica has assigned since the last call, as a list."""
    context = our_replica_context()
    found = _assigned.get(context.strategy, {}).pop(replica_of(context), {})
    return list(found.values())


def replica_of(context):
    """Return the id of the replica of a replica context, as an int."""
    return int(tf.get_static_value(context.replica_id_in_sync_group))
