"""`keras.utils.PyDataset` and generators of Keras 3: one order of batches on all workers."""

import contextlib
import random

import numpy as np

from tf_adasum.seams.keras.fit import when_fit_ends
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3.private_names import (
    PY_DATASETS,
    ArrayDataAdapter,
    GeneratorDataAdapter,
    OrderedEnqueuer,
    PyDatasetAdapter,
)

# In so many first passes workers compare their batches: one order may be made before `fit`, and
# another one at the end of each epoch.
PASSES_COMPARED = 2


def share_seed(strategy, adapter):
    """Agree with the other workers on another seed of what a PyDataset shuffles.

    Before each pass; and before Keras ends an epoch that has not been, when `fit` begins.

    Args:
        strategy: the strategy of this package.
        adapter: Keras's, of the data; nothing is done for other data.
    """
    if strategy.workers.count == 1 or not isinstance(adapter, PyDatasetAdapter):
        return
    adapter.common_seed = strategy.seeds.shared()
    if adapter.enqueuer is not None:
        adapter.enqueuer.common_seed = adapter.common_seed if adapter.shuffle else None
        adapter.enqueuer.shuffle = False  # it would draw from Python's generator meanwhile


def keep_reading(adapter):
    """Let the threads of a PyDataset read on between the epochs of a `fit` with `steps_per_epoch`.

    A distributed iterator continues in the next epoch, and reads ahead; Keras stops the threads at
    the end of each epoch, so that the iterator would raise.

    Args:
        adapter: Keras's, of the data; nothing is done for other data, or without threads.
    """
    if reads_in_threads(adapter) and not getattr(adapter, "keeps_reading", False):
        adapter.keeps_reading = True
        when_fit_ends(adapter.enqueuer.stop)


def reads_in_threads(adapter):
    """Whether an adapter is one of a PyDataset with `workers=` or `use_multiprocessing=`."""
    return isinstance(adapter, PyDatasetAdapter) and adapter.enqueuer is not None


def begin_pass(strategy, adapter, has_steps):
    """Agree with the other workers on the order of batches; compare the first batch, or the rows.

    Args:
        strategy: the strategy of this package.
        adapter: Keras's, of the data; nothing is done for a `tf.data.Dataset`.
        has_steps: whether `fit` got the number of steps in an epoch.
    """
    if strategy.workers.count == 1:
        return
    passes = adapter.passes_begun = getattr(adapter, "passes_begun", 0) + 1
    if isinstance(adapter, PyDatasetAdapter):
        data = adapter.py_dataset
        if passes == 1:
            strategy.workers.check_same(
                "All workers need a PyDataset of the same number of batches.",
                data.num_batches,
                code="TFA-405",
            )
        share_seed(strategy, adapter)
        if passes <= PASSES_COMPARED:
            strategy.sharding.check_batches(lambda: data[0])
    elif isinstance(adapter, ArrayDataAdapter) and passes == 1:
        strategy.sharding.ends.check_rows(adapter._num_samples, adapter.num_batches)
    elif isinstance(adapter, GeneratorDataAdapter) and passes == 1 and not has_steps:
        strategy.sharding.check_batches(lambda: adapter._first_batches[0])


def _order(count, seed):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@hooks.replaces(PyDatasetAdapter, "_finite_generator", feature=PY_DATASETS)
def finite_generator(original, self):
    """Let all workers take the batches in the order of their common seed.

    With Keras each worker shuffles with Python's generator: some rows are used twice, some never.
    """
    seed = getattr(self, "common_seed", None)
    if seed is None or not self.shuffle:
        yield from original(self)
        return
    for index in _order(self.py_dataset.num_batches, seed):
        yield self._standardize_batch(self.py_dataset[index])


@hooks.replaces(OrderedEnqueuer, "_send_py_dataset", feature=PY_DATASETS)
def send_py_dataset(original, self):
    """Let all workers take the batches in the order of their common seed, also with `workers=`.

    An enqueuer calls it after it has made the order, before it gets the first batch.
    """
    seed = getattr(self, "common_seed", None)
    if seed is not None and self.py_dataset.num_batches is not None:
        self.indices = iter(_order(self.py_dataset.num_batches, seed))
    return original(self)


@hooks.replaces(PyDatasetAdapter, "on_epoch_begin", "on_epoch_end", feature=PY_DATASETS)
def on_epoch_begin_or_end(original, self):
    """Let the user's code shuffle in the same way on all workers.

    Meanwhile Python's and NumPy's generators have the common seed; then their state is restored.
    """
    is_end = original.__name__ == "on_epoch_end"
    seed, enqueuer = getattr(self, "common_seed", None), self.enqueuer
    with contextlib.nullcontext() if seed is None else _seeded(seed ^ is_end):
        if is_end and getattr(self, "keeps_reading", False):
            self.enqueuer = None  # it is not stopped
        try:
            return original(self)
        finally:
            self.enqueuer = enqueuer


@contextlib.contextmanager
def _seeded(seed):
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
