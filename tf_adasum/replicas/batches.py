"""Batches: which rows of a global batch each replica gets, and in whose memory they lie.

Shape legend: B rows of the global batch, N replicas.
"""

import numpy as np
import tensorflow as tf


def split(strategy, batch):
    """Split one global batch over all replicas, in the order in which `predict` returns rows.

    Args:
        strategy: the strategy over whose N replicas it is split.
        batch: structure of arrays ``[B, ...]``, the same on every worker; None is left alone.

    Returns:
        The structure, of distributed values: on each replica its own rows, see `row_range`.

    Raises:
        ValueError: if there are no rows, or arrays of different length.
    """
    arrays = [_rows_of(value) for value in tf.nest.flatten(batch) if value is not None]
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            "A batch needs arrays of the same number of rows, at least one. "
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
    """Return which rows of a global batch are a replica's: ceil(B / N) or floor(B / N) of them.

    `predict` returns the rows of every worker's first device, then those of every second one, and
    so on: in this order the replicas get their parts.

    Args:
        rows: B.
        replica: the replica's id; ids count a worker's devices before the next worker's.
        replicas: N.
        devices: number of devices of each worker.

    Returns:
        The first row, and the one after the last.

    Example:
        >>> [row_range(7, replica, replicas=4, devices=2) for replica in range(4)]
        [(0, 2), (4, 6), (2, 4), (6, 7)]
    """
    worker, device = divmod(replica, devices)
    part = device * (replicas // devices) + worker
    return -(-part * rows // replicas), -(-(part + 1) * rows // replicas)


def in_their_own_memory(dataset):
    """Return a dataset whose batches lie in memory of their own.

    The arrays that a Python generator yields are used in place where they are aligned. A part of a
    batch, which TensorFlow makes for each replica, is in that memory, too, but TensorFlow takes it
    for its own: it joins the local devices' parts there, and puts the results of operations there.
    So it overwrites the user's data; seen with TensorFlow 2.21, also under
    `tf.distribute.MirroredStrategy`.

    Args:
        dataset: a `tf.data.Dataset`; of its elements numbers and booleans are copied.

    Returns:
        A `tf.data.Dataset` of equal elements.
    """
    spec = dataset.element_spec

    def copy(value):
        is_number = value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_complex
        return tf.raw_ops.DeepCopy(x=value) if is_number or value.dtype.is_bool else value

    def copy_all(*components):
        element = components if isinstance(spec, tuple) else components[0]
        flat = tf.nest.flatten(element, expand_composites=True)
        return tf.nest.pack_sequence_as(spec, [copy(v) for v in flat], expand_composites=True)

    return dataset.map(copy_all)


def _rows_of(value):
    array = value if hasattr(value, "shape") else np.asarray(value)
    if len(array.shape) == 0:
        raise ValueError(f"A batch needs arrays with a row for each example. Received: {value!r}")
    return array
