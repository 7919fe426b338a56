"""Hooks into variables of Keras 3."""

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


# The operations of updates that keep the largest or the smallest value.
_EXTREMES = {"Maximum": tf.reduce_max, "Minimum": tf.reduce_min}

# Attribute of a TensorFlow variable: the function that reduces the values of the replicas.
_REDUCTION = "reduction_of_tf_adasum"


@hooks.replaces(keras.Variable, "assign", feature="metrics that keep a maximum or a minimum")
def note_extreme(original, self, value):
    """Note which variables of metrics keep a maximum or a minimum.

    Reading a metric outside of the replicas reads the sum of the replicas' variables.
    """
    result = original(self, value)
    if our_replica_context() and getattr(self, "synchronization", "") == "on_read":
        operation = getattr(value, "op", None) if not tf.executing_eagerly() else None
        reduction = _EXTREMES.get(operation and operation.type)
        if reduction:
            setattr(self._value, _REDUCTION, reduction)
    return result


def reduction_of(variable):
    """Return the function that reduces the replicas' values of a metric's variable, or None."""
    # A distributed variable looks other attributes up in its value, which would be reduced.
    return getattr(variable, "__dict__", {}).get(_REDUCTION)
