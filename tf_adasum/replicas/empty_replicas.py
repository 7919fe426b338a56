"""Replaces the gradients of replicas without rows by zeros.

In a last batch, some replicas may have no rows. For example, four rows on three devices are split
into 2, 2 and 0 rows. Without rows, a replica would compute 0/0, or only the derivative of its
regularizers, instead of a gradient.
"""

import weakref

import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat


class EmptyReplicas:
    """Determines which replicas have no rows, while a strategy runs a function in each replica.

    A replica has no rows if all tensors of unknown length among its arguments are empty. One empty
    tensor is not enough: a graph without edges has nodes. If all lengths are known, as in eager
    code, a replica has no rows if all tensors are empty. If all lengths are known and one is not 0,
    nothing is added to the graph.
    """

    def __init__(self):
        # From the id of a replica to the result of `has_no_rows` in it.
        self._is_empty: dict[int, tf.Tensor | bool | None] = {}
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
        self._is_empty[replica()] = has_no_rows((args, kwargs))

    def forget(self):
        """Delete all notes, because their tensors belong to one graph."""
        self._is_empty.clear()

    @property
    def is_empty(self):
        """Whether this replica has no rows: boolean scalar tensor or True; None if it has rows."""
        return self._is_empty.get(replica())

    def is_empty_if_any(self):
        """Return `is_empty` as a tensor; None only if `is_empty` is None on all local replicas."""
        own = self.is_empty

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
        numbers = [_numbers(gradient) for gradient in gradients if gradient is not None]

        def zeros():
            return [tf.zeros_like(each) for each in numbers]

        # tf.cond returns the same tensors. A product with 0 would copy the tensors and keep NaN.
        chosen = iter(zeros() if is_empty is True else tf.cond(is_empty, zeros, lambda: numbers))
        return [
            None if gradient is None else _with_numbers(gradient, next(chosen))
            for gradient in gradients
        ]


@tf.autograph.experimental.do_not_convert
def _of_unknown_length(value):
    """Return a tensor of a graph; if its length is known to be 0, make the length unknown.

    Layers expect batches of unknown length. Keras mistakes a tensor ``[0, n]`` for a bias of n
    numbers, and loops of recurrent layers do not keep a length of 0.
    """
    if not isinstance(value, tf.Tensor) or not value.shape.rank or value.shape[0] != 0:
        return value
    return tf.compat.v1.placeholder_with_default(value, [None, *value.shape[1:]])


def has_no_rows(arguments):
    """Return whether the arguments of a replica's function hold a batch without rows.

    Args:
        arguments: any structure; its dense, ragged and sparse tensors are checked.

    Returns:
        True if the batch is known to be empty; None if it cannot be empty; otherwise a boolean
        scalar tensor.
    """
    values = [each for each in tf.nest.flatten(arguments) if _has_batch_axis(each)]
    lengths = [None if value.shape.rank is None else value.shape[0] for value in values]
    pairs = zip(values, lengths, strict=True)
    unknown = [_length(value) for value, length in pairs if length is None]
    if unknown:
        return tf.reduce_all([tf.equal(length, 0) for length in unknown])
    return True if lengths and not any(lengths) else None


def _has_batch_axis(value):
    is_tensor = isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor)
    return is_tensor and value.shape.rank != 0


def _length(value):
    if isinstance(value, tf.RaggedTensor):
        return value.nrows()
    shape = value.dense_shape if isinstance(value, tf.SparseTensor) else tf.shape(value)
    return tf.cast(tf.reduce_prod(shape[:1]), tf.int64)  # 1 for a scalar


def replica():
    """Return the current replica's id, counted over all workers; None outside of a replica."""
    context = tf.distribute.get_replica_context()
    return context and int(tf.get_static_value(context.replica_id_in_sync_group))


def _numbers(gradient):
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return tf.convert_to_tensor(gradient.values if is_sparse else gradient)


def _with_numbers(gradient, numbers):
    if not isinstance(gradient, tf.IndexedSlices):
        return numbers
    return tf.IndexedSlices(numbers, gradient.indices, gradient.dense_shape)
