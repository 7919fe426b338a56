"""What a step of Keras 3 returns, its logs: the mean of what the replicas' steps return."""

import math
import typing

import tensorflow as tf

from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3.private_names import trainer
from tf_adasum.seams.keras.optimizers import our_replica_context


class _Logs(typing.NamedTuple):
    """The result of a step on one replica.

    Attributes:
        values: structure of tensors; None stays.
        numbers: float64 vector of the elements of all values that have a mean, and 1 behind them;
            all of them 0 if the replica has no rows.
    """

    values: typing.Any
    numbers: tf.Tensor


def returning_logs(step):
    """Return a step from whose results `reduce_per_replica` makes means.

    Variables, as a metric's result may be one, are read on each replica: between the replicas Keras
    cannot average them, and read there one of a metric is the sum over all of them already.

    Args:
        step: function of a replica's part of a batch.
    """

    def with_numbers(data):
        values = tf.nest.map_structure(_as_tensor, step(data))
        return _Logs(values, _numbers(tf.nest.flatten(values)))

    return with_numbers


def _as_tensor(value):
    is_read = value is None or isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return value if is_read else tf.convert_to_tensor(value)


def _has_mean(value):
    is_array = isinstance(value, tf.Tensor) and value.shape.is_fully_defined()
    return is_array and (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool)


def _numbers(values):
    """Return the numbers of `_Logs`; float64 holds whole numbers up to 2^53."""
    vectors = [tf.reshape(tf.cast(each, tf.float64), [-1]) for each in values if _has_mean(each)]
    numbers = tf.concat([*vectors, tf.ones([1], tf.float64)], axis=0)
    context = our_replica_context()
    is_empty = context.strategy.empty_replicas.is_empty if context else None
    return numbers if is_empty is None else tf.where(is_empty, tf.zeros_like(numbers), numbers)


@hooks.replaces(trainer, "reduce_per_replica")
def reduce_per_replica(original, values, strategy, reduction):
    """Average what a step returns over the replicas that have rows, in one collective.

    With several workers Keras averages a vector, such as a score of each class, along its own axis
    too, and has a collective for every value. A value without a mean, such as a string or an array
    of unknown length, comes from this worker's first replica.
    """
    if not isinstance(values, _Logs):
        return original(values, strategy, reduction)
    logs = [strategy.experimental_local_results(each)[0] for each in tf.nest.flatten(values.values)]
    if strategy.num_replicas_in_sync > 1:
        total = strategy.reduce("SUM", values.numbers, axis=None)
        means = iter(_means(total, [each for each in logs if _has_mean(each)]))
        logs = [next(means) if _has_mean(each) else each for each in logs]
    return tf.nest.pack_sequence_as(values.values, logs)


def _means(total, like):
    """Return means in the shapes and dtypes of some values; means of bools are fractions."""
    *parts, replicas = tf.split(total, [*(math.prod(each.shape) for each in like), 1])
    return [
        tf.cast(
            tf.reshape(part / replicas, value.shape),
            tf.float32 if value.dtype.is_bool else value.dtype,
        )
        for part, value in zip(parts, like, strict=True)
    ]
