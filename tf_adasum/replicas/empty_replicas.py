"""Counts the rows of each replica, and replaces the gradients of replicas without rows by zeros.

In a last batch, replicas may have different numbers of rows, and some may have none. For example,
four rows on three devices are split into 2, 2 and 0 rows. Without rows, a replica would compute
0/0, or only the derivative of its regularizers, instead of a gradient.
"""

import functools
import weakref

import tensorflow as tf

from tf_adasum.aggregation.sparse import values_of, with_values
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat


class EmptyReplicas:
    """Counts the rows of each replica, while a strategy runs a function in each replica.

    The number of rows is the length of the last argument that is not empty, among those whose batch
    axis has an unknown length. In `fit` this is a target, whose rows the loss averages over. A
    replica has no rows if all of them are empty: a graph without edges has nodes. If all lengths
    are known, as in eager code, the first argument with a batch axis that is not empty counts, and
    nothing is added to the graph.

    Args:
        steps: dict from the id of a replica to the `micro_batches.DeviceStep` that it runs.
    """

    def __init__(self, steps):
        self._steps = steps
        # From the id of a replica to the result of `count_rows` in it.
        self._rows: dict[int, tf.Tensor | int | None] = {}
        # From the id of a replica to the number of rows of all replicas, and the graph that has it.
        self._totals: dict[int, tuple] = {}
        # From a tf.function to the function that `noting` returns for it.
        self._noting: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def noting(self, function):
        """Return a function that first notes whether this replica has rows.

        Args:
            function: the function that was passed to `strategy.run`.
        """
        if not tensorflow_compat.is_tf_function(function):
            return self._in_replica(function)
        if function not in self._noting:
            python_function = self._in_replica(function.python_function)
            self._noting[function] = tensorflow_compat.clone_tf_function(function, python_function)
        return self._noting[function]

    def _in_replica(self, function):
        def in_replica(*args, **kwargs):
            if not tf.executing_eagerly():
                args, kwargs = tf.nest.map_structure(_of_unknown_length, (args, kwargs))
            self._note(args, kwargs)
            return function(*args, **kwargs)

        return in_replica

    @tf.autograph.experimental.do_not_convert
    def _note(self, args, kwargs):
        self._rows[tensorflow_compat.replica()] = count_rows((args, kwargs))
        keras_compat.share_global_seeds(tf.distribute.get_strategy())

    def forget(self):
        """Delete all notes, because their tensors belong to one graph."""
        self._rows.clear()
        self._totals.clear()

    def rows_of_replica(self, number):
        """Return the number of rows of a local replica: int, int64 scalar tensor, or None."""
        return self._steps[number].rows if number in self._steps else self._rows.get(number)

    @property
    def rows(self):
        """The number of rows of this replica: int, int64 scalar tensor, or None if not known.

        Within a micro-batch, it is the number of rows of the micro-batch.
        """
        own = tensorflow_compat.replica()
        return self._steps[own].rows_now if own in self._steps else self._rows.get(own)

    @property
    def is_empty(self):
        """Whether this replica has no rows: boolean scalar tensor or True; None if it has rows."""
        if not isinstance(self.rows, tf.Tensor):
            return True if self.rows == 0 else None
        return tf.equal(self.rows, 0)

    @property
    def has_total(self):
        """Whether `total_rows` needs no exchange, because this replica has called it before."""
        own = tensorflow_compat.replica()
        return own in self._steps or (own in self._totals and _is_visible(self._totals[own][1]))

    def total_rows(self):
        """Return the number of rows of all replicas, float32; every replica calls this method.

        It is an int if this process has all replicas, and their numbers are known and equal.
        """
        own = tensorflow_compat.replica()
        if own in self._steps:
            return self._steps[own].total
        if not self.has_total:
            self._totals[own] = self._exchanged_total(), _current_graph()
        return self._totals[own][0]

    def _exchanged_total(self):
        context = tf.distribute.get_replica_context()
        own = 1 if self.rows is None else self.rows
        is_known = context.merge_call(self._are_known_and_equal)
        if is_known:
            return own * context.num_replicas_in_sync
        return context.all_reduce("SUM", tf.cast(own, tf.float32))

    def _are_known_and_equal(self, strategy):
        rows = list(self._rows.values())
        is_local = strategy._workers.count == 1 and all(isinstance(own, int) for own in rows)
        return all(own is None for own in rows) or (is_local and len(set(rows)) == 1)

    def weight(self):
        """Return ``n_i N / Σ n_i`` for n_i rows of N replicas; None if all have as many rows.

        Within a micro-batch, n_i is the number of its rows, and N the number of devices.
        """
        total = self.total_rows()
        if isinstance(total, int) and tensorflow_compat.replica() not in self._steps:
            return None
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        own = tf.cast(self.rows, tf.float32) * replicas
        return tf.math.divide_no_nan(own, tf.cast(total, tf.float32))

    def is_empty_if_any(self):
        """Return `is_empty` as a tensor; None only if `is_empty` is None on all local replicas."""
        own, step = self.is_empty, self._steps.get(tensorflow_compat.replica())
        if step and step.hands_over:  # alone
            return None if own is None else tf.convert_to_tensor(own)

        def any_of_local(strategy, is_known):
            return any(strategy.experimental_local_results(is_known))

        context = tf.distribute.get_replica_context()
        if not context.merge_call(any_of_local, args=(own is not None,)):
            return None
        return tf.constant(False) if own is None else tf.convert_to_tensor(own)

    def zero_where_empty(self, gradients):
        """Return a replica's gradients; return zeros if the replica has no rows.

        Args:
            gradients: list of tensors, `tf.IndexedSlices` and None.
        """
        is_empty = self.is_empty
        if is_empty is None:
            return list(gradients)
        numbers = [values_of(gradient) for gradient in gradients if gradient is not None]

        def zeros():
            return [tf.zeros_like(each) for each in numbers]

        # tf.cond returns the same tensors. A product with 0 would copy the tensors and keep NaN.
        chosen = iter(zeros() if is_empty is True else tf.cond(is_empty, zeros, lambda: numbers))
        return [
            None if gradient is None else with_values(gradient, next(chosen))
            for gradient in gradients
        ]


def _current_graph():
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _is_visible(graph):
    """Return whether the current graph is a graph or within it; None is eager code."""
    current = _current_graph()
    while current is not None and current is not graph:
        current = getattr(current, "outer_graph", None)
    return current is graph


@tf.autograph.experimental.do_not_convert
def _of_unknown_length(value):
    """Return a tensor of a graph; if its length is known to be 0, make the length unknown.

    Layers expect batches of unknown length. Keras mistakes a tensor ``[0, n]`` for a bias of n
    numbers, and loops of recurrent layers do not keep a length of 0.
    """
    if not isinstance(value, tf.Tensor) or not value.shape.rank or value.shape[0] != 0:
        return value
    return tf.compat.v1.placeholder_with_default(value, [None, *value.shape[1:]])


def count_rows(arguments):
    """Return the number of rows in the arguments of a replica's function.

    Args:
        arguments: any structure; its dense, ragged and sparse tensors are checked.

    Returns:
        An int if all lengths are known; None if there is no batch axis; otherwise an int64 scalar
        tensor.
    """
    values = [each for each in tf.nest.flatten(arguments) if _has_batch_axis(each)]
    lengths = [None if value.shape.rank is None else value.shape[0] for value in values]
    pairs = zip(values, lengths, strict=True)
    unknown = [_length(value) for value, length in pairs if length is None]
    if unknown:
        return functools.reduce(
            lambda before, length: tf.where(length > 0, length, before), unknown
        )
    return next(filter(None, lengths), 0) if lengths else None


def _has_batch_axis(value):
    is_tensor = isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return is_tensor and value.shape.rank != 0


def _length(value):
    if isinstance(value, tf.RaggedTensor):
        return value.nrows()
    shape = value.dense_shape if isinstance(value, tf.SparseTensor) else tf.shape(value)
    return tf.cast(tf.reduce_prod(shape[:1]), tf.int64)  # 1 for a scalar
