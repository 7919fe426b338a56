"""Averages the logs of the replicas' steps, and joins their predictions, for Keras 3.

The mean of the replicas' AUCs is not the AUC of all rows. At the end of an epoch and of a call,
Keras reads the metrics again if the logs have exactly their names. For steps of the user, which may
return anything, the results of metrics cover all rows within the step.
"""

import functools
import math
import threading
import typing

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.variables import reduction_of
from tf_adasum.compat.keras.optimizers import is_ours, our_replica_context, tensorflow_variable
from tf_adasum.compat.keras.private_names_keras3 import trainer


class _Logs(typing.NamedTuple):
    """The result of a step on one replica.

    Attributes:
        values: structure of tensors and None.
        numbers: float64 vector of the elements of all values that have a mean (numbers and bools of
            known shape), then 1, multiplied by the number of rows of the replica.
    """

    values: typing.Any
    numbers: tf.Tensor


# Whether this thread is a replica that runs a step of the user, whose logs are averaged.
_running = threading.local()


@hooks.replaces(keras.metrics.Metric, "__init__")
def init_metric(original, self, *args, **kwargs):
    """Let the `result` of every metric cover all rows if a step of the user calls it.

    On each replica, `result` would cover the replica's own rows. The step may return it under any
    name, or compute a log from it, such as F1 from precision and recall. The mean of the replicas'
    values is another number. Keras's own steps need no exchange for this, because at the end of an
    epoch Keras reads the metrics again.
    """
    original(self, *args, **kwargs)
    owner = next(each for each in type(self).__mro__ if "result" in vars(each))
    if not hasattr(owner.result, "covers_all_rows"):
        owner.result = _covering_all_rows(owner.result)


def _covering_all_rows(result):
    @functools.wraps(result)
    def covering(metric, *args, **kwargs):
        if not getattr(_running, "own_step", False) or not tensorflow_compat.can_reduce():
            return result(metric, *args, **kwargs)
        _running.own_step = False  # for metrics within this metric
        try:
            with keras.StatelessScope(_values_of_all(metric.variables)):
                # A result may be a variable, which has these values only here.
                return tf.nest.map_structure(_as_tensor, result(metric, *args, **kwargs))
        finally:
            _running.own_step = True

    covering.covers_all_rows = True
    return covering


def _values_of_all(variables):
    """Return pairs of a metric's variables and their values over all replicas."""
    context, values, sums = our_replica_context(), [], []
    for one in variables:
        if reduce := reduction_of(tensorflow_variable(one)):
            values.append((one, reduce(context.all_gather(one.value[None], axis=0), axis=0)))
        elif one.aggregation == "sum":
            sums.append(one)
    if sums:
        numbers = [tf.reshape(tf.cast(one.value, tf.float64), [-1]) for one in sums]
        total = context.all_reduce("SUM", tf.concat(numbers, axis=0))
        parts = tf.split(total, [math.prod(one.shape) for one in sums])
        for one, part in zip(sums, parts, strict=True):
            values.append((one, tf.cast(tf.reshape(part, one.shape), one.dtype)))
    return values


def returning_logs(step, is_own):
    """Return a step whose results `reduce_per_replica` can average.

    A result may be a variable, such as the result of a metric. Each replica reads the variable,
    because Keras cannot average variables outside of the replicas. Outside of the replicas, reading
    the variable of a metric already returns the sum over all replicas.

    Args:
        step: function that gets a replica's part of a batch.
        is_own: whether the user has written the step or what it calls, so that the results of
            metrics within it have to cover all rows.
    """

    def with_numbers(data):
        context = our_replica_context()
        _running.own_step = is_own and context and context.num_replicas_in_sync > 1
        try:
            values = tf.nest.map_structure(_as_tensor, step(data))
        finally:
            _running.own_step = False
        return _Logs(values, _numbers(tf.nest.flatten(values)))

    return with_numbers


class _OwnLogs(typing.NamedTuple):
    """The result of a step on one replica, which nobody reads: a structure of tensors and None."""

    values: typing.Any


def returning_own_logs(step):
    """Return a step whose results `reduce_per_replica` does not average."""
    return lambda data: _OwnLogs(tf.nest.map_structure(_as_tensor, step(data)))


def _as_tensor(value):
    is_read = value is None or isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return value if is_read else tf.convert_to_tensor(value)


def _has_mean(value):
    is_array = isinstance(value, tf.Tensor) and value.shape.is_fully_defined()
    return is_array and (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool)


def _numbers(values):
    """Return `_Logs.numbers`. (float64 represents whole numbers exactly up to 2^53.)"""
    vectors = [tf.reshape(tf.cast(each, tf.float64), [-1]) for each in values if _has_mean(each)]
    numbers = tf.concat([*vectors, tf.ones([1], tf.float64)], axis=0)
    context = our_replica_context()
    rows = context.strategy._empty_replicas.rows if context else None
    return numbers if rows is None else tf.math.multiply_no_nan(numbers, tf.cast(rows, tf.float64))


@hooks.replaces(trainer, "reduce_per_replica")
def reduce_per_replica(original, values, strategy, reduction):
    """Average the results of a step over the rows of all replicas, in one collective.

    With several workers, Keras would reduce a vector, such as one score for each class, to a single
    number, because it averages over the elements of the vector too. Keras would also run one
    collective for every value. A value without a mean, such as a string or an array of unknown
    length, comes from this worker's first replica.
    """
    if isinstance(values, _OwnLogs):
        return tf.nest.map_structure(
            lambda each: strategy.experimental_local_results(each)[0], values.values
        )
    if not isinstance(values, _Logs):
        rows = _rows_of_all(values, strategy) if reduction == "concat" else None
        return original(values, strategy, reduction) if rows is None else rows
    logs = [strategy.experimental_local_results(each)[0] for each in tf.nest.flatten(values.values)]
    if strategy.num_replicas_in_sync > 1:
        total = strategy.reduce("SUM", values.numbers, axis=None)
        means = iter(_means(total, [each for each in logs if _has_mean(each)]))
        logs = [next(means) if _has_mean(each) else each for each in logs]
    return tf.nest.pack_sequence_as(values.values, logs)


def _rows_of_all(values, strategy):
    """Return the predictions of all replicas; None if Keras has to gather them.

    Keras runs four collectives of TensorFlow for every output, which take longer than the step.
    """
    if not is_ours(strategy) or strategy._workers.count == 1:
        return None
    cross_device_ops = tensorflow_compat.cross_device_ops(strategy.extended)
    rows = cross_device_ops.gather_rows(tf.nest.flatten(values))
    return None if rows is None else tf.nest.pack_sequence_as(values, rows)


def _means(total, like):
    """Return the means, in the shapes and dtypes of `like`. The mean of bools is a float32."""
    *parts, rows = tf.split(total, [*(math.prod(each.shape) for each in like), 1])
    return [
        tf.cast(
            tf.reshape(part / rows, value.shape),
            tf.float32 if value.dtype.is_bool else value.dtype,
        )
        for part, value in zip(parts, like, strict=True)
    ]
