"""The epochs of Keras 3: the order of rows, new datasets, and the start of an epoch."""

import warnings
import weakref

import keras
from tensorflow.data import UNKNOWN_CARDINALITY, Dataset

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.batch_logs import has_keras_steps
from tf_adasum.compat.keras.calls import current_call
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3 import py_datasets
from tf_adasum.compat.keras.optimizers import is_ours
from tf_adasum.compat.keras.private_names_keras3 import (
    ArrayDataAdapter,
    BaseTrainer,
    TFDatasetAdapter,
    TFEpochIterator,
    trainer,
)
from tf_adasum.errors import see

NO_BATCH = (
    "The dataset has no batch. With drop_remainder=True, check whether the dataset has fewer rows "
    f"than the batch size. {see('TFA-406')}"
)
AFTER_LAST_BATCH = "resuming from a backup that was made after the last batch of an epoch"


@hooks.overrides("__iter__", "__next__", "_get_iterator")
class EpochIterator(TFEpochIterator):
    """The iterator over the epochs of a call, with batches that all workers agree on."""

    data_order = None  # a `DataOrder`, while a training with backups runs

    def __iter__(self):
        """Replace a dataset of `replaceable_dataset`, and skip the batches that are done.

        Keras uses one dataset for all epochs, and begins every epoch with the first batch. Workers
        whose batches come from Python agree on the order of the batches. If the workers' datasets
        end at different times, an epoch continues until all datasets have ended. (Keras would use
        the number of batches before sharding.) If an epoch resumes with its validation, it has no
        steps left, and this iterator yields nothing. A `DataOrder` knows which batches are done.
        """
        order, adapter, strategy = self.data_order, self.data_adapter, self._distribute_strategy
        is_py_dataset = isinstance(adapter, py_datasets.SharedOrderAdapter)
        if order and order.take_validation():
            self._epoch_iterator = iter(())
            return self
        if order and is_py_dataset:
            begins_pass = not self.steps_per_epoch or self._current_iterator is None
            adapter.set_order(order, begins_pass)
        if is_ours(strategy):
            strategy._sharding.end_check.begin()
            if is_py_dataset and self.steps_per_epoch and current_call() == "fit":
                adapter.keep_reading()
            has_steps = self.steps_per_epoch is not None
            py_datasets.begin_pass(strategy, adapter, has_steps, order is not None)
        if isinstance(adapter, TFDatasetAdapter):
            self._replace_dataset()
        batch, position = order.take_start() if order else (0, 0)
        if position > batch:
            self._current_iterator = iter(self._get_iterator())
            _leave_out(self._current_iterator, position - batch)
            self._steps_seen = position - batch
        if order and is_py_dataset:  # which may also shuffle when the epoch begins and ends
            adapter.common_seed = order.seed_of_epoch(order.epoch)
        begun = super().__iter__()
        _leave_out_steps(self, batch)
        return begun

    def _replace_dataset(self):
        strategy = self._distribute_strategy
        following = getattr(self.data_adapter.get_tf_dataset(), "next_dataset", lambda: None)()
        if following is not None:
            self._distributed_dataset = strategy.experimental_distribute_dataset(following)
            cardinality = int(following.cardinality())
            self._num_batches = cardinality if cardinality >= 0 else None
            self._current_iterator = None
        # The workers may have found out that no worker knows the number of steps.
        if is_ours(strategy):
            if int(self._distributed_dataset.cardinality) == UNKNOWN_CARDINALITY:
                self._num_batches = None

    def __next__(self):
        """Raise an error on all workers if the rows of some workers ended in the previous step.

        Otherwise, the other workers would continue with only their own parts of the batches.
        """
        strategy = self._distribute_strategy
        if is_ours(strategy):
            together = self.steps_per_execution
            begun = max(0, self._steps_seen - together)
            batches = range(begun, begun + together)
            strategy._sharding.end_check.check(self._distributed_dataset, batches)
        return super().__next__()

    def _get_iterator(self):
        """Shuffle arrays on all workers with worker 0's seed, or with the seed of a `DataOrder`.

        In Keras each worker shuffles separately, so some rows are used twice and others never. Here
        all workers use the same seed, which changes in each epoch.

        At the end of an epoch, Keras creates an iterator that it never uses if there is no
        `steps_per_epoch`. It is not created here, because it would take time, and would take
        batches from the threads that read a PyDataset.

        Arrays end in the same step on all workers, so no step asks the workers for the end.
        """
        strategy = self._distribute_strategy
        is_at_end = self._current_iterator is not None and self._steps_seen >= (
            self._num_batches or 1
        )
        order, seed = self.data_order, None
        shuffles = getattr(self.data_adapter, "_shuffle", False)
        if order and shuffles:  # which also notes the epoch in which the pass begins
            seed = order.seed_of_pass(self._steps_seen > 0)
        if (order or is_ours(strategy)) and is_at_end and not self.steps_per_epoch:
            return ()
        if is_ours(strategy) and shuffles and not order:
            seed = strategy._seeds.shared_if_needed()
        if seed is not None:
            self.data_adapter._epoch = seed  # since Keras 3.16, the seed with which arrays shuffle
            with tensorflow_compat.seeded(seed):
                dataset = self.data_adapter.get_tf_dataset()
            self._distributed_dataset = strategy.experimental_distribute_dataset(dataset)
        if order:
            _begin_earlier_passes(self, order.take_passes())
        _passes[_data_of(self)] = _passes.get(_data_of(self), 0) + 1
        if is_ours(strategy) and isinstance(self.data_adapter, ArrayDataAdapter):
            # The workers compare the numbers of rows, and raise an error if they differ.
            strategy._sharding.skip_end_check(self._distributed_dataset)
        return super()._get_iterator()

    # ---- for backups ---------------------------------------------------------------------------

    def batches(self):
        """Return the rows of a global batch, and the number of batches in the data.

        A number is 0 if it is not known. Both are 0 for a distributed dataset, of which each
        replica has its own batches, and with `steps_per_epoch`, where an epoch is no pass through
        the data.
        """
        adapter = self.data_adapter
        is_dataset = isinstance(adapter, TFDatasetAdapter)
        if self.steps_per_epoch or (is_dataset and not isinstance(_data_of(self), Dataset)):
            return 0, 0
        try:
            rows = adapter.batch_size
        except (AttributeError, IndexError, ValueError):  # the elements have no first dimension
            rows = None
        return rows or 0, self._num_batches or 0

    def position(self, batch, has_begun=False):
        """Return how many batches of the current pass through the data are done.

        Args:
            batch: how many batches of the epoch are done. Without `steps_per_epoch`, it is returned
                unchanged.
            has_begun: whether the next step has begun, so that Keras has already counted this step.
                Defaults to `False`.
        """
        if not self.steps_per_epoch:
            return batch
        begun = self.steps_per_execution if has_begun else 0
        return max(batch, self._steps_seen - begun)

    def passes(self, batch):
        """Return how many passes through the data have ended.

        Args:
            batch: how many batches of the epoch are done.
        """
        is_within = self._current_iterator is not None if self.steps_per_epoch else batch > 0
        begun = _passes.get(_data_of(self), 0) - is_within
        return max(begun, getattr(self.data_order, "passes_ahead", 0) or 0)

    def why_not_repeatable(self):
        """Return why a new process cannot read the rows in the same order, or "" if it can."""
        data = _data_of(self)
        if isinstance(data, Dataset):
            return tensorflow_compat.why_not_repeatable(data)
        return data.why_not_repeatable() if isinstance(data, py_datasets.SharedOrderAdapter) else ""


@hooks.replaces(trainer, "TFEpochIterator")
def make_epoch_iterator(original, *args, **kwargs):
    """Let `fit`, `evaluate` and `predict` make an `EpochIterator`, a subclass."""
    iterator = EpochIterator(*args, **kwargs)
    py_datasets.share_order(iterator.data_adapter)
    return iterator


# For each object with data: how many iterators of it have begun a pass in this process.
_passes = weakref.WeakKeyDictionary()


def _data_of(epoch_iterator):
    adapter = epoch_iterator.data_adapter
    return adapter.get_tf_dataset() if isinstance(adapter, TFDatasetAdapter) else adapter


def _begin_earlier_passes(epoch_iterator, passes):
    """Begin the earlier passes of a `tf.data.Dataset`, because each pass has another order."""
    data = _data_of(epoch_iterator)
    if passes is None or not isinstance(data, Dataset):
        return
    missing = passes - _passes.get(data, 0)
    if missing < 0:
        warnings.warn(
            "Some rows of the interrupted epoch are used twice and others are left out, because "
            "this dataset was read before. Each pass has another order, so create the dataset "
            f"again before `fit` resumes. {see('TFA-609')}",
            stacklevel=2,
        )
    distributed = epoch_iterator._distributed_dataset
    parts = getattr(distributed, "_cloned_datasets", [distributed])
    for number in range(missing):
        tensorflow_compat.begin_pass(data, parts, is_first=number == 0)
    _passes[data] = max(passes, _passes.get(data, 0))


def _leave_out_steps(epoch_iterator, batches):
    """Skip the first batches of an epoch that has begun, and the steps of these batches."""
    together, done = epoch_iterator.steps_per_execution, 0
    while done < batches:
        *_, iterator = next(epoch_iterator._epoch_iterator)
        _leave_out(iterator, min(together, batches - done))
        done += together


def _leave_out(iterator, batches):
    for _ in range(batches):
        next(iterator)


# For each model: its last `TFEpochIterator`, and the iterator of its training with backups. (An
# iterator has no reference to the model.)
_last_iterator, _iterator_of_training = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()


def note_iterator(model, iterator):
    """Store the `TFEpochIterator` with which `fit` or an evaluation of a model begins."""
    _last_iterator[model] = weakref.ref(iterator)


def set_data_order(model, order):
    """Set the order of the data for the `fit` that is about to begin.

    Args:
        model: the model. If a custom loop trains the model, nothing is done.
        order: a `DataOrder`; None when the training has ended.
    """
    if order is not None and model in _last_iterator:
        _iterator_of_training[model] = _last_iterator[model]
    iterator = iterator_of_training(model)
    if iterator is not None:
        iterator.data_order = order
    if order is None:
        _iterator_of_training.pop(model, None)


def iterator_of_training(model, begins=False):
    """Return the `EpochIterator` of a training with backups; None in a custom loop.

    Args:
        model: the model.
        begins: whether the `fit` is about to begin, so that `set_data_order` was not called yet.
            Defaults to `False`.
    """
    return (_last_iterator if begins else _iterator_of_training).get(model, lambda: None)()


@hooks.replaces(BaseTrainer, "_get_metrics_result_or_logs", feature=AFTER_LAST_BATCH)
def get_metrics_result_or_logs(original, self, logs):
    """If all batches of an epoch were done before the training resumed, return the epoch's metrics.

    Such an epoch has no step that returns logs, so Keras would raise an error. If the metrics of
    the epoch's batches do not exist, return {}. In any other epoch of `fit`, missing logs mean that
    the data had no batch.

    With Keras's own steps, return metrics over all rows, although a metric was created after the
    step was traced. Keras would return the logs of the last step.

    Raises:
        ValueError: if `fit` got data without a batch.
    """
    order = getattr(iterator_of_training(self), "data_order", None)
    if not logs and order:
        return self.get_metrics_result() if order.has_metrics else {}
    if not logs and current_call() == "fit":
        raise ValueError(NO_BATCH)
    result = original(self, logs)
    is_read = result is not logs or not is_ours(self._distribute_strategy)
    if is_read or not has_keras_steps(self, current_call() or "fit"):
        return result
    of_all = keras.Model.get_metrics_result(self)
    return {key: of_all.get(key, value) for key, value in logs.items()}
