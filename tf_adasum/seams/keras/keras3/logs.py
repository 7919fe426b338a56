"""What a step of Keras 3 returns, its logs: the mean of what the replicas' steps return."""

import math

import tensorflow as tf

from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3.private_names import Trainer, trainer
from tf_adasum.seams.keras.optimizers import is_ours


@hooks.replaces(Trainer, "_make_function")
def make_function(original, self, step_function):
    """Read on each replica what a step returns: it may be a variable, as a metric's result may.

    Between the replicas Keras cannot average a variable, and read there one of a metric is the sum
    over all of them already.
    """
    if not is_ours(self._distribute_strategy):
        return original(self, step_function)
    return original(self, lambda data: tf.nest.map_structure(_as_tensor, step_function(data)))


def _as_tensor(value):
    is_read = value is None or isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return value if is_read else tf.convert_to_tensor(value)


@hooks.replaces(trainer, "reduce_per_replica")
def reduce_per_replica(original, values, strategy, reduction):
    """Average what a step returns in one collective, whatever it is.

    With several workers Keras averages a vector, such as a score of each class, along its own axis
    too, and has a collective for every value. What has no mean, a string or an array of unknown
    length, is that of this worker's first replica.
    """
    if not is_ours(strategy) or strategy.num_replicas_in_sync == 1 or reduction != "auto":
        return original(values, strategy, reduction)
    values_of_all = tf.nest.flatten(values)
    logs = [strategy.experimental_local_results(value)[0] for value in values_of_all]
    numbers = [index for index, value in enumerate(logs) if _has_mean(value)]
    if numbers:
        to_average = [values_of_all[index] for index in numbers]
        packed = strategy.extended.call_for_each_replica(_pack, args=(to_average,))
        mean = strategy.reduce("MEAN", packed, axis=None)
        for index, value in zip(numbers, _unpack(mean, [logs[i] for i in numbers]), strict=True):
            logs[index] = value
    return tf.nest.pack_sequence_as(values, logs)


def _has_mean(value):
    is_array = isinstance(value, tf.Tensor) and value.shape.is_fully_defined()
    return is_array and (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool)


def _pack(values):
    """Return the elements of all values as one vector; float64 holds whole numbers up to 2^53."""
    return tf.concat([tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values], axis=0)


def _unpack(vector, like):
    """Take a vector of `_pack` apart; truth values stay fractions."""
    sizes = [math.prod(value.shape) for value in like]
    return [
        tf.cast(
            tf.reshape(part, value.shape), tf.float32 if value.dtype == tf.bool else value.dtype
        )
        for part, value in zip(tf.split(vector, sizes), like, strict=True)
    ]
