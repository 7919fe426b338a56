"""A hook into variables of Keras 3."""

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks


@hooks.replaces(keras.Variable, "__float__", "__int__", feature="float(variable), int(variable)")
def to_number(original, self):
    """Convert a variable that has a copy on each replica, such as `optimizer.learning_rate`.

    Python cannot convert TensorFlow's distributed variables, only their value.
    """
    value = self.value
    if not isinstance(value, tf.distribute.DistributedValues) or not tf.executing_eagerly():
        return original(self)
    return {"__float__": float, "__int__": int}[original.__name__](value.numpy())
