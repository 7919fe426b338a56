"""Hooks into datasets, for tf.data's autotuning and for workers whose data ends early."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_adasum.compat.tensorflow.private_names import (
    AUTOTUNING,
    UNEVEN,
    DistributedDataset,
    DistributedDatasetsFromFunction,
    DistributedDatasetsFromFunctionSpec,
    DistributedDatasetSpec,
    DistributedIterator,
    DistributedIteratorSpec,
    hooks,
    input_lib,
    multi_device_iterator_ops,
)


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


def _spec_with_end(stock):
    """Return a subclass of a spec, which also has how the end of the data is detected.

    TensorFlow compares only the shapes and dtypes of the batches. If a function was traced for an
    endless dataset, or for one that ends in the same step on all workers (`skip_end_check`), it
    does not ask whether other workers have a batch. Functions are traced again for other iterators.
    """

    @hooks.overrides("sanity_check_type", "_serialize", "_from_components", feature=UNEVEN)
    class Spec(stock):
        def _end(self):
            is_endless = self._cardinality == tf.data.INFINITE_CARDINALITY
            return self._enable_get_next_as_optional, is_endless

        def sanity_check_type(self, other):
            """Let functions be traced again for an iterator that detects its end differently."""
            super().sanity_check_type(other)
            if self._end() != other._end():
                raise ValueError(
                    "One of the datasets asks in each step whether all workers have a batch."
                )

        def _serialize(self):
            """Let functions be traced again for an iterator that detects its end differently."""
            return *super()._serialize(), *self._end()  # specs with the same result are equal

        def _from_components(self, components):
            """Create an object of this file also within a `tf.function`."""
            return with_end_check(super()._from_components(components))

    return Spec


def _dataset_with_end(stock):
    """Return a subclass of a distributed dataset that creates an `_Iterator`."""

    class Dataset(stock):
        def __iter__(self):
            return with_end_check(super().__iter__())

        @property
        def _type_spec(self):
            return with_end_check(super()._type_spec)

    return Dataset


@hooks.overrides("get_next", "get_next_as_optional", feature=UNEVEN)
class _Iterator(DistributedIterator):
    """The iterator of a distributed dataset, which reports workers whose data ends early.

    TensorFlow counts the replicas of all workers that have a batch, and continues until no replica
    has a batch. After `skip_end_check`, only the local replicas are counted.
    """

    @property
    def _type_spec(self):
        return with_end_check(super()._type_spec)

    @tf.autograph.experimental.do_not_convert
    def get_next(self, name=None):
        """Report to the strategy if some replicas have a batch in a step and others have none."""
        if not self._enable_get_next_as_optional:
            return super().get_next(name)
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            raise ValueError("Call next(iterator) outside of the function of `strategy.run`.")
        return self._if_any_has_a_batch(
            lambda batch: batch, self._get_next_no_partial_batch_handling
        )

    @tf.autograph.experimental.do_not_convert
    def get_next_as_optional(self):
        """Report as `get_next`. After `skip_end_check`, do not ask the other workers."""
        if self._cardinality == tf.data.INFINITE_CARDINALITY:
            return super().get_next_as_optional()
        return self._if_any_has_a_batch(
            tf.experimental.Optional.from_value,
            lambda: tf.experimental.Optional.empty(self._element_spec),
        )

    def _if_any_has_a_batch(self, some, none):
        """Return `some` of the replicas' batches. If no replica has a batch, return `none()`."""
        (device,), (iterator,) = self._input_workers.worker_devices, self._iterators
        with tf.device(device):
            batches = [iterator.get_next_as_optional_list()]
        asks = self._enable_get_next_as_optional

        def of_replicas():
            # A replica without a batch gets an empty one, whose length is unknown.
            own = input_lib._get_value_or_dummy(self._input_workers, batches, asks)
            return some(input_lib._create_per_replica(own, self._strategy))

        has_batch = [each.has_value() for each in batches[0]]
        if not asks:
            return tf.cond(tf.reduce_any(has_batch), of_replicas, none)
        return tf.cond(self._count(has_batch, batches) > 0, of_replicas, none)

    def _count(self, has_batch, batches):
        """Return how many replicas of all workers have a batch."""
        strategy = self._strategy
        number = input_lib._calculate_replicas_with_values(strategy, self._input_workers, batches)
        if strategy._workers.count == 1:
            return number

        def note():
            has_any = tf.reduce_any(has_batch)
            noted = tf.numpy_function(strategy._sharding.end_check.note, [has_any], tf.bool)
            with tf.control_dependencies([noted]):
                return tf.identity(number)

        is_uneven = (number > 0) & (number < strategy.num_replicas_in_sync)
        return tf.cond(is_uneven, note, lambda: tf.identity(number))


_DATASETS = DistributedDataset, DistributedDatasetsFromFunction
_SPECS = DistributedDatasetSpec, DistributedDatasetsFromFunctionSpec, DistributedIteratorSpec

# For each class of TensorFlow: its subclass.
_WITH_END = {DistributedIterator: _Iterator}
_WITH_END |= {stock: _dataset_with_end(stock) for stock in _DATASETS}
_WITH_END |= {stock: _spec_with_end(stock) for stock in _SPECS}


def with_end_check(value: Any) -> Any:
    """Give a distributed dataset, its iterator or its spec the methods of this file."""
    if type(value) in _WITH_END:
        value.__class__ = _WITH_END[type(value)]
    return value


def forget_cardinality(distributed: tf.distribute.DistributedDataset) -> None:
    """Let a distributed dataset continue until the data of all workers has ended.

    Otherwise Keras uses this worker's number of batches as the fixed length of an epoch.
    """
    distributed._cardinality = tf.data.UNKNOWN_CARDINALITY


def replaceable_dataset(
    dataset: tf.data.Dataset, next_dataset: Callable[[], tf.data.Dataset | None]
) -> tf.data.Dataset:
    """Return a `tf.data.Dataset` that another dataset can replace when an epoch begins.

    Args:
        dataset: the first dataset.
        next_dataset: function that is called when an epoch of Keras 3 begins. It returns the
            dataset to use from this epoch on, or None to keep the current dataset.
    """
    dataset = dataset.with_options(tf.data.Options())  # the user's object does not change
    dataset.next_dataset = next_dataset
    return dataset
