"""Datasets: tf.data's autotuning, numbers of batches, and which worker's part ends first."""

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
    """Switch tf.data's autotuning off in the datasets that feed one device each.

    A strategy passes batches to every local device through a separate dataset, which has nothing to
    tune and cannot be accessed from outside. The end of an epoch would wait for the tuning.
    """
    return without_autotuning(original(*args, **kwargs))


def without_autotuning(dataset: Any) -> Any:
    """Return a `tf.data.Dataset` that tf.data does not autotune, unless its options say so.

    Its tuning thread sleeps for a period that doubles up to a minute. The end of an iterator wakes
    it before it is marked as cancelled, so that the thread may go to sleep again, and the end waits
    for it (seen with TensorFlow 2.21: of 22 iterators that lasted 1.5 s, 7 took a second to end;
    under this strategy in one process 2 of 23 epochs). Of N workers all wait for each one. What
    is left to `tf.data.AUTOTUNE` keeps its initial parallelism, the number of cores.
    """
    if not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@hooks.replaces(input_lib, "_calculate_replicas_with_values", feature=UNEVEN)
def calculate_replicas_with_values(original, strategy, input_workers, optional_list):
    """Report to the strategy when some replicas have a batch in a step and others have none.

    TensorFlow adds up, over all workers, how many replicas have one, and continues until none has.
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

    Keras uses this worker's number of batches as the length of an epoch, which cannot be changed.
    """
    distributed._cardinality = tf.data.UNKNOWN_CARDINALITY
