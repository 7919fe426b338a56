"""Averages the logs of the replicas' steps, and joins their predictions, for Keras 3.

The mean of the replicas' AUCs is not the AUC of all rows. So at the end of an epoch and of a call,
logs that are results of the model's metrics are read from the metrics again. Keras does this only
if the logs have exactly the names of the metrics.
"""

import math
import typing
import weakref

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizers import is_ours, our_replica_context
from tf_adasum.compat.keras.private_names_keras3 import trainer


class _Logs(typing.NamedTuple):
    """The result of a step on one replica.

    Attributes:
        values: structure of tensors and None.
        numbers: float64 vector of the elements of all values that have a mean (numbers and bools of
            known shape), then `differences`, then 1, multiplied by the number of rows of the
            replica.
        differences: float64 vector, see `MetricsInLogs`.
    """

    values: typing.Any
    numbers: tf.Tensor
    differences: tf.Tensor


class _MeanLogs(typing.NamedTuple):
    """The logs of a step, averaged over the replicas.

    Attributes:
        values: structure of tensors and None.
        differences: the mean of the replicas' `_Logs.differences`.
    """

    values: typing.Any
    differences: tf.Tensor


class MetricsInLogs:
    """Finds the logs of a step that are results of the model's metrics.

    A log is the result of a metric if it equals the metric's own result on every replica. Its name
    may be another.

    Args:
        model: the `keras.Model`.

    Attributes:
        pairs: list of pairs (key of the logs, name in `get_metrics_result`) that the traced step
            compares. A pair with the same name comes first.
    """

    def __init__(self, model):
        self._model, self.pairs = weakref.ref(model), []

    def differences(self, logs):
        """Return for each pair 1.0 if the log differs from the metric's result on this replica."""
        self.pairs, own = [], {}
        context = our_replica_context()
        if isinstance(logs, dict) and context and context.num_replicas_in_sync > 1:
            own = keras.Model.get_metrics_result(self._model())
        if own.keys() == getattr(logs, "keys", dict)():  # Keras reads the metrics again
            return tf.zeros([0], tf.float64)
        differences = []
        for key in sorted(logs):
            for name in sorted(own, key=lambda name, key=key: (name != key, name)):
                log, result = logs[key], _as_tensor(own[name])
                if _has_mean(log) and _has_mean(result) and log.shape == result.shape:
                    log, result = tf.cast(log, tf.float64), tf.cast(result, tf.float64)
                    equal = (log == result) | (tf.math.is_nan(log) & tf.math.is_nan(result))
                    differences.append(tf.cast(tf.logical_not(tf.reduce_all(equal)), tf.float64))
                    self.pairs.append((key, name))
        return tf.stack(differences) if differences else tf.zeros([0], tf.float64)

    def note(self, means):
        """Return the values of `_MeanLogs`, and store which of them are results of metrics."""
        _metrics_in_logs[self._model()] = list(self.pairs), means.differences
        return means.values


# For each model: the pairs and the differences of the last step whose logs were averaged.
_metrics_in_logs = weakref.WeakKeyDictionary()


def metrics_in_logs(model):
    """Return a dict from the keys of the last step's logs to names in `get_metrics_result`."""
    pairs, differences = _metrics_in_logs.get(model, ((), ()))
    equal = [pair for pair, number in zip(pairs, differences, strict=True) if number == 0]
    return dict(reversed(equal))  # the first pair of a key counts


def returning_logs(step, metrics):
    """Return a step whose results `reduce_per_replica` can average.

    A result may be a variable, such as the result of a metric. Each replica reads the variable,
    because Keras cannot average variables outside of the replicas. Outside of the replicas, reading
    the variable of a metric already returns the sum over all replicas.

    Args:
        step: function that gets a replica's part of a batch.
        metrics: the `MetricsInLogs` of the step.
    """

    def with_numbers(data):
        values = tf.nest.map_structure(_as_tensor, step(data))
        differences = metrics.differences(values)
        return _Logs(values, _numbers(tf.nest.flatten(values), differences), differences)

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


def _numbers(values, differences):
    """Return `_Logs.numbers`. (float64 represents whole numbers exactly up to 2^53.)"""
    vectors = [tf.reshape(tf.cast(each, tf.float64), [-1]) for each in values if _has_mean(each)]
    numbers = tf.concat([*vectors, differences, tf.ones([1], tf.float64)], axis=0)
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
    differences = strategy.experimental_local_results(values.differences)[0]
    if strategy.num_replicas_in_sync > 1:
        total = strategy.reduce("SUM", values.numbers, axis=None)
        with_mean = [each for each in logs if _has_mean(each)]
        *means, differences = _means(total, [*with_mean, differences])
        means = iter(means)
        logs = [next(means) if _has_mean(each) else each for each in logs]
    return _MeanLogs(tf.nest.pack_sequence_as(values.values, logs), differences)


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
