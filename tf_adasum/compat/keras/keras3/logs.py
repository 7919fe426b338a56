"""Averages the logs of the replicas' steps, and joins their predictions, for Keras 3.

The mean of the replicas' AUCs is not the AUC of all rows. At the end of an epoch and of a call,
Keras reads the metrics again if the logs have exactly their names. For steps of the user, which may
return anything, the results of metrics cover all rows within the step.
"""

import functools
import typing

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.variables import reduction_of
from tf_adasum.compat.keras.optimizers import (
    divided,
    is_ours,
    joined,
    our_replica_context,
    tensorflow_variable,
)
from tf_adasum.compat.keras.private_names_keras3 import trainer
from tf_adasum.compat.thread_flag import ThreadFlag


class _Logs(typing.NamedTuple):
    """The result of a step on one replica.

    Attributes:
        values: structure of tensors and None.
        numbers: float64 vector of the elements of all values that have a mean (numbers and bools of
            known shape), then 1, multiplied by the number of rows of the replica. None, if nobody
            reads the values.
    """

    values: typing.Any
    numbers: tf.Tensor | None


# Whether this thread is a replica that runs a step of the user, whose logs are averaged.
_runs_own_step = ThreadFlag()


def _cover_all_rows(kind=keras.metrics.Metric):
    """Let the `result` of every class of metrics cover all rows if a step of the user calls it.

    On each replica, `result` would cover the replica's own rows. The step may return it under any
    name, or compute a log from it, such as F1 from precision and recall. The mean of the replicas'
    values is another number. Keras's own steps need no exchange for this, because at the end of an
    epoch Keras reads the metrics again.
    """
    for each in kind.__subclasses__():
        owner = next(one for one in each.__mro__ if "result" in vars(one))  # may be a mixin
        if not hasattr(owner.result, "covers_all_rows"):
            owner.result = _covering_all_rows(owner.result)
        _cover_all_rows(each)


def _covering_all_rows(result):
    @functools.wraps(result)
    def covering(metric, *args, **kwargs):
        if not _runs_own_step.value or not tensorflow_compat.can_reduce():
            return result(metric, *args, **kwargs)
        with (
            _runs_own_step.within(False),  # for metrics within this metric
            keras.StatelessScope(_values_of_all(metric.variables)),
        ):
            # A result may be a variable, which has these values only here.
            return tf.nest.map_structure(_as_tensor, result(metric, *args, **kwargs))

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
        total = context.all_reduce("SUM", joined(sums, tf.float64))
        values += zip(sums, divided(total, sums), strict=True)
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
        is_exchanging = is_own and context and context.num_replicas_in_sync > 1
        if is_exchanging:
            _cover_all_rows()
        with _runs_own_step.within(is_exchanging):
            values = tf.nest.map_structure(_as_tensor, step(data))
        return _Logs(values, _numbers(tf.nest.flatten(values)))

    return with_numbers


def returning_own_logs(step):
    """Return a step whose results `reduce_per_replica` does not average."""
    return lambda data: _Logs(tf.nest.map_structure(_as_tensor, step(data)), None)


def _as_tensor(value):
    is_read = value is None or isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return value if is_read else tf.convert_to_tensor(value)


def _has_mean(value):
    is_array = isinstance(value, tf.Tensor) and value.shape.is_fully_defined()
    return is_array and (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool)


def _numbers(values):
    """Return `_Logs.numbers`. (float64 represents whole numbers exactly up to 2^53.)"""
    numbers = joined([*filter(_has_mean, values), 1.0], tf.float64)
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
    if not isinstance(values, _Logs):
        rows = _rows_of_all(values, strategy) if reduction == "concat" else None
        return original(values, strategy, reduction) if rows is None else rows
    logs = [strategy.experimental_local_results(each)[0] for each in tf.nest.flatten(values.values)]
    if values.numbers is not None and strategy.num_replicas_in_sync > 1:
        total = strategy.reduce("SUM", values.numbers, axis=None)
        like = [each for each in logs if _has_mean(each)]  # the mean of bools is a float32
        like = [tf.cast(each, tf.float32) if each.dtype.is_bool else each for each in like]
        means = iter(divided(total[:-1] / total[-1], like) if like else [])
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
