"""Hooks into datasets, for tf.data's autotuning and for workers whose data ends early."""

from typing import Any

import tensorflow as tf

from tf_adasum.seams.base_strategy import GradientAggregatingStrategy
from tf_adasum.seams.tensorflow.private_names import (
    AUTOTUNING,
    UNEVEN,
    input_lib,
    multi_device_iterator_ops,
)
from tf_adasum.seams.tensorflow.registry import hooks


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


@hooks.replaces(input_lib, "_calculate_replicas_with_values", feature=UNEVEN)
def calculate_replicas_with_values(original, strategy, input_workers, optional_list):
    """Report to the strategy if some replicas have a batch in a step and other replicas have none.

    TensorFlow counts the replicas of all workers that have a batch, and continues until no replica
    has a batch.
    """
    number = original(strategy, input_workers, optional_list)
    if not isinstance(strategy, GradientAggregatingStrategy) or strategy.workers.count == 1:
        return number
    has_batch = tf.reduce_any([each.has_value() for own in optional_list for each in own])

    def note():
        noted = tf.numpy_function(strategy.sharding.ends.note, [has_batch], tf.bool)
        with tf.control_dependencies([noted]):
            return tf.identity(number)

    is_uneven = (number > 0) & (number < strategy.num_replicas_in_sync)
    return tf.cond(is_uneven, note, lambda: tf.identity(number))


def cardinality(distributed: tf.distribute.DistributedDataset) -> int:
    """Return the number of batches of this worker's part of a distributed dataset."""
    return int(distributed.cardinality)


def forget_cardinality(distributed: tf.distribute.DistributedDataset) -> None:
    """Let a distributed dataset continue until the data of all workers has ended.

    Otherwise Keras uses this worker's number of batches as the fixed length of an epoch.
    """
    distributed._cardinality = tf.data.UNKNOWN_CARDINALITY
