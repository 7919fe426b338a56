"""Hooks into datasets, for tf.data's autotuning and for workers whose data ends early."""

import contextvars
from typing import Any

import tensorflow as tf

from tf_adasum.compat.base_strategy import GradientAggregatingStrategy
from tf_adasum.compat.tensorflow.private_names import (
    AUTOTUNING,
    UNEVEN,
    DistributedDatasetAndIteratorSpec,
    DistributedIterator,
    input_lib,
    multi_device_iterator_ops,
)
from tf_adasum.compat.tensorflow.registry import hooks


@hooks.replaces(multi_device_iterator_ops, "_create_device_dataset", feature=AUTOTUNING)
def create_device_dataset(original, *args, **kwargs):
    """Switch off tf.data's autotuning in the datasets that feed one device each.

    A strategy passes batches to every local device through a separate dataset. This dataset has
    nothing to tune, and users cannot change its options. Without this hook, the end of an epoch
    would wait for the autotuning.
    """
    return without_autotuning(original(*args, **kwargs))


def without_autotuning(dataset: Any) -> Any:
    """Return a `tf.data.Dataset` without tf.data's autotuning, unless its options set autotuning.

    The tuning thread sleeps for a period that doubles up to a minute. When an iterator ends, it
    wakes the thread, and only then marks the cancellation. So the thread may go to sleep again, and
    the iterator cannot end before the thread wakes up. We observed this with TensorFlow 2.21: of 22
    iterators that lasted 1.5 s, 7 iterators took a second to end. Under this strategy in one
    process, 2 of 23 epochs took a second to end. All other workers wait for such a worker.
    Operations with `tf.data.AUTOTUNE` keep their initial parallelism, which is the number of cores.
    """
    if not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


# Whether the iterator that fetches a batch now belongs to a dataset that ends on all workers in the
# same step.
_ends_together = contextvars.ContextVar("ends_together", default=False)


def skip_end_check(distributed: tf.distribute.DistributedDataset) -> None:
    """Let a distributed dataset take batches without asking whether other workers have a batch.

    Call it only if all workers have the same number of batches. TensorFlow would ask in each step,
    because it does not know this, and all workers would wait for the answer.
    """
    distributed._enable_get_next_as_optional = False


# With these options, TensorFlow takes each batch from the dataset's own iterator.
_DIRECT = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)


def read_directly(distributed: tf.distribute.DistributedDataset) -> None:
    """Let a worker whose only device is a CPU take batches directly from its part of a dataset.

    TensorFlow would use a `MultiDeviceIterator`, which calls a function for each batch. For a small
    CNN, this takes 0.6 of 4.8 ms of CPU time per step (two workers, TensorFlow 2.21). Like the
    `MultiDeviceIterator`, the dataset prepares one batch in advance.
    """
    distributed._options = _DIRECT
    distributed._cloned_datasets = [each.prefetch(1) for each in distributed._cloned_datasets]


@hooks.replaces(DistributedIterator, "get_next_as_optional", feature=UNEVEN)
def get_next_as_optional(original, self):
    """Do not ask the other workers whether they have a batch, after `skip_end_check`."""
    token = _ends_together.set(not self._enable_get_next_as_optional)
    try:
        return original(self)
    finally:
        _ends_together.reset(token)


@hooks.replaces(DistributedDatasetAndIteratorSpec, "sanity_check_type", feature=UNEVEN)
def sanity_check_type(original, self, other):
    """Let functions be traced again for an iterator that detects the end of the data differently.

    TensorFlow compares only the shapes and dtypes of the batches. If a function was traced for an
    endless dataset, or for one that ends in the same step on all workers (`skip_end_check`), it
    does not ask whether other workers have a batch.
    """
    original(self, other)
    if _end(self) != _end(other):
        raise ValueError("One of the datasets asks in each step whether all workers have a batch.")


@hooks.replaces(DistributedDatasetAndIteratorSpec, "_serialize", feature=UNEVEN)
def serialize(original, self):
    """Let functions be traced again for an iterator that detects the end of the data differently.

    Specs with the same `_serialize` are equal. TensorFlow serializes only the shapes and dtypes of
    the batches.
    """
    return *original(self), *_end(self)


def _end(spec):
    """Return how an iterator with this spec finds its end: two booleans."""
    return spec._enable_get_next_as_optional, spec._cardinality == tf.data.INFINITE_CARDINALITY


@hooks.replaces(input_lib, "_calculate_replicas_with_values", feature=UNEVEN)
def calculate_replicas_with_values(original, strategy, input_workers, optional_list):
    """Report to the strategy if some replicas have a batch in a step and other replicas have none.

    TensorFlow counts the replicas of all workers that have a batch, and continues until no replica
    has a batch. After `skip_end_check`, only the local replicas are counted.
    """
    if _ends_together.get():
        has_batch = [each.has_value() for own in optional_list for each in own]
        return tf.reduce_sum(tf.cast(tf.stack(has_batch), tf.int64))
    number = original(strategy, input_workers, optional_list)
    if not isinstance(strategy, GradientAggregatingStrategy) or strategy._workers.count == 1:
        return number
    has_batch = tf.reduce_any([each.has_value() for own in optional_list for each in own])

    def note():
        noted = tf.numpy_function(strategy._sharding.end_check.note, [has_batch], tf.bool)
        with tf.control_dependencies([noted]):
            return tf.identity(number)

    is_uneven = (number > 0) & (number < strategy.num_replicas_in_sync)
    return tf.cond(is_uneven, note, lambda: tf.identity(number))


@hooks.replaces(input_lib, "_get_value_or_dummy", feature=UNEVEN)
def get_value_or_dummy(original, input_workers, optional_list, produce_dummy):
    """Make no empty batch for replicas without a batch, after `skip_end_check`.

    The length of a batch would be unknown, because it might be 0.
    """
    return original(input_workers, optional_list, produce_dummy and not _ends_together.get())


def cardinality(distributed: tf.distribute.DistributedDataset) -> int:
    """Return the number of batches of this worker's part of a distributed dataset."""
    return int(distributed.cardinality)


def forget_cardinality(distributed: tf.distribute.DistributedDataset) -> None:
    """Let a distributed dataset continue until the data of all workers has ended.

    Otherwise Keras uses this worker's number of batches as the fixed length of an epoch.
    """
    distributed._cardinality = tf.data.UNKNOWN_CARDINALITY
