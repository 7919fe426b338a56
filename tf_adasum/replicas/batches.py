"""Splits a global batch over the replicas, and copies batches out of the user's arrays.

Shape legend: B is the number of rows of the global batch, N is the number of replicas.
"""

import numpy as np
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat


def split(strategy, batch):
    """Split one global batch over all replicas, in the order in which `predict` returns rows.

    Args:
        strategy: the strategy with the N replicas.
        batch: structure of arrays ``[B, ...]``, the same on every worker. A None in it
            stays None.

    Returns:
        The same structure, with a distributed value for each array. Each replica has its own rows,
        see `row_range`.

    Raises:
        ValueError: if there are no rows, or if the arrays have different lengths.
    """
    arrays = [_as_array(value) for value in tf.nest.flatten(batch) if value is not None]
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            "All arrays of a batch need the same number of rows, at least one. "
            f"Received: arrays of {', '.join(str(len(array)) for array in arrays)} rows"
        )
    rows = lengths.pop()
    replicas, devices = strategy.num_replicas_in_sync, len(strategy.extended.worker_devices)

    def own_rows(context):
        replica = int(context.replica_id_in_sync_group)
        start, stop = row_range(rows, replica, replicas=replicas, devices=devices)
        return tuple(tf.convert_to_tensor(array[start:stop]) for array in arrays)

    parts = iter(strategy.experimental_distribute_values_from_function(own_rows))
    split_values = [None if value is None else next(parts) for value in tf.nest.flatten(batch)]
    return tf.nest.pack_sequence_as(batch, split_values)


def row_range(rows, replica, *, replicas, devices):
    """Return the rows of a global batch that a replica gets: ceil(B / N) or floor(B / N) rows.

    `predict` returns the rows of the first device of each worker, then of the second device of each
    worker, and so on. The replicas get their rows in this order.

    Args:
        rows: the number of rows of the global batch, B.
        replica: the replica's id; ids count all devices of a worker before the next worker.
        replicas: the number of replicas, N.
        devices: the number of devices of each worker.

    Returns:
        The index of the replica's first row, and the index of the row after its last row.

    Example:
        >>> [row_range(7, replica, replicas=4, devices=2) for replica in range(4)]
        [(0, 2), (4, 6), (2, 4), (6, 7)]
    """
    worker, device = divmod(replica, devices)
    part = device * (replicas // devices) + worker
    return -(-part * rows // replicas), -(-(part + 1) * rows // replicas)


def ordered_by_replica(dataset, workers, devices):
    """Return a dataset whose batches are in another order: replica r gets the r-th part of a batch.

    TensorFlow gives the first parts to the first devices of all workers, see `row_range`. But
    virtual replicas need the same rows and the same neighbours on any number of devices. In a last
    batch whose rows do not fill all replicas, a few rows may go to a neighbour.

    Args:
        dataset: a `tf.data.Dataset` of global batches.
        workers: the number of workers.
        devices: the number of devices of each worker.
    """
    parts = np.arange(workers * devices).reshape(workers, devices).T.ravel()

    def order(value):
        rows = tf.shape(value, tf.int64)[0]
        starts, stops = (-(-(parts + side) * rows // len(parts)) for side in (0, 1))
        return tf.gather(value, tf.ragged.range(starts, stops).values)

    return _mapped(dataset, order)


def in_their_own_memory(dataset):
    """Return a dataset whose batches do not share the memory of the user's arrays.

    TensorFlow does not copy an aligned array that a Python generator yields. So the rows of each
    replica stay in the memory of the user's array. But TensorFlow joins the rows of the local
    devices in this memory, and writes results of operations to this memory. So TensorFlow
    overwrites the user's data (observed with TensorFlow 2.21, also under
    `tf.distribute.MirroredStrategy`).

    Args:
        dataset: a `tf.data.Dataset`; its numbers and booleans are copied.

    Returns:
        A `tf.data.Dataset` with equal elements.
    """

    def copy(value):
        is_number = value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_complex
        return tf.raw_ops.DeepCopy(x=value) if is_number or value.dtype.is_bool else value

    return _mapped(dataset, copy, expand_composites=True)


def _mapped(dataset, function, **options):
    """Return a dataset whose tensors are the results of a function, as `tf.nest.map_structure`."""

    @tf.autograph.experimental.do_not_convert
    def of_element(*components):
        results = map(function, tf.nest.flatten(components, **options))
        return tf.nest.pack_sequence_as(dataset.element_spec, list(results), **options)

    return dataset.map(of_element)


def extreme(strategy, variable, reduction):
    """Return the largest or smallest of the replicas' values of a variable.

    Args:
        strategy: the strategy of the variable.
        variable: a variable with another value on each replica.
        reduction: `tf.reduce_max` or `tf.reduce_min`.
    """
    copies = [own.read_value()[None] for own in strategy.experimental_local_results(variable)]
    return reduction(strategy.gather(tensorflow_compat.per_replica(copies), axis=0), axis=0)


def _as_array(value):
    array = value if hasattr(value, "shape") else np.asarray(value)
    if len(array.shape) == 0:
        raise ValueError(f"A batch needs arrays with one row per example. Received: {value!r}")
    return array
