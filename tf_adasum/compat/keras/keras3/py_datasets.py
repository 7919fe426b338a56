"""Gives the batches of a `PyDataset` one order on all workers, and checks generators (Keras 3)."""

import contextlib
import random

import keras
import numpy as np

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.calls import when_fit_ends
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.private_names_keras3 import (
    PY_DATASETS,
    ArrayDataAdapter,
    GeneratorDataAdapter,
    OrderedEnqueuer,
    PyDatasetAdapter,
)

SEED = "call keras.utils.set_random_seed at the beginning of the program."

# Workers compare the first batch of each of the first two passes. A PyDataset may shuffle its data
# once before `fit`, and again at the end of each epoch.
PASSES_COMPARED = 2


def share_seed(strategy, adapter):
    """Agree with the other workers on a new seed with which a PyDataset shuffles.

    Called before each pass. Also called when `fit` begins, because Keras then calls `on_epoch_end`,
    although no epoch has run.

    Args:
        strategy: the strategy of this package.
        adapter: Keras's adapter of the data. For other data than a PyDataset, nothing is done.
    """
    if strategy._workers.count > 1 and isinstance(adapter, SharedOrderAdapter):
        adapter.set_seed(strategy._seeds.shared())


def begin_pass(strategy, adapter, has_steps, has_order):
    """Agree with the other workers on the order of batches, and check that the data is the same.

    Args:
        strategy: the strategy of this package.
        adapter: Keras's adapter of the data. For a `tf.data.Dataset`, nothing is done.
        has_steps: whether `fit` got `steps_per_epoch`.
        has_order: whether a `DataOrder` has set the seed.
    """
    if strategy._workers.count == 1:
        return
    passes = adapter.passes_begun = getattr(adapter, "passes_begun", 0) + 1
    if isinstance(adapter, PyDatasetAdapter):
        data = adapter.py_dataset
        if passes == 1:
            strategy._workers.check_same(
                "All workers need a PyDataset of the same number of batches.",
                data.num_batches,
                code="TFA-405",
            )
        if not has_order:
            share_seed(strategy, adapter)
        if passes <= PASSES_COMPARED:
            strategy._sharding.check_batches(lambda: data[0])
    elif isinstance(adapter, ArrayDataAdapter) and passes == 1:
        strategy._sharding.end_check.check_rows(adapter._num_samples, adapter.num_batches)
    elif isinstance(adapter, GeneratorDataAdapter) and passes == 1 and not has_steps:
        strategy._sharding.check_batches(lambda: adapter._first_batches[0])


def _order(count, seed):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@hooks.overrides("_finite_generator", feature=PY_DATASETS)
class SharedOrderAdapter(PyDatasetAdapter):
    """Keras's adapter of a `PyDataset`, with the order of all workers.

    Attributes:
        common_seed: the seed that all workers share; None until `set_seed` is called, and without
            our strategy.
        keeps_reading: whether the threads continue between epochs.
    """

    common_seed, keeps_reading = None, False

    def set_seed(self, seed):
        """Let the next pass shuffle with a seed."""
        self.common_seed = seed
        if self.enqueuer is not None:
            self.enqueuer.common_seed = seed if self.shuffle else None
            self.enqueuer.shuffle = False  # Keras would use Python's random generator

    def set_order(self, order, begins_pass):
        """Bring the PyDataset into the state in which the current pass of a `DataOrder` began.

        When training resumes, the epochs that were done begin and end again, without their steps,
        because a PyDataset may shuffle in `on_epoch_begin` and `on_epoch_end`.

        Args:
            order: the `DataOrder`.
            begins_pass: whether the epoch begins with a new iterator.
        """
        if order.take_passes():
            for epoch in range(order.first_epoch or 0, order.epoch):
                seed = order.seed_of_epoch(epoch)
                for call, own in (("on_epoch_begin", seed), ("on_epoch_end", seed ^ 1)):
                    with _seeded(own):
                        getattr(self.py_dataset, call)()
        if begins_pass and not order.continues_pass:
            order.began = order.epoch
        self.set_seed(order.seed_of_epoch(order.began))

    def keep_reading(self):
        """Keep the threads, if there are any, running between epochs of `steps_per_epoch`.

        A distributed iterator reads ahead, and continues in the next epoch. Keras would stop the
        threads at the end of each epoch, and the iterator would raise an error.
        """
        if self.enqueuer is not None and not self.keeps_reading:
            self.keeps_reading = True
            when_fit_ends(self.enqueuer.stop)

    def why_not_repeatable(self):
        """Return why a new process cannot read the rows in the same order, or "" if it can."""
        is_own = type(self.py_dataset).on_epoch_end is not keras.utils.PyDataset.on_epoch_end
        if is_own and tensorflow_compat.global_seed() is None:
            return "a PyDataset with its own `on_epoch_end` is used without a seed: " + SEED
        return ""

    def _finite_generator(self):
        """Shuffle the batches with a seed that all workers share.

        In Keras each worker shuffles with Python's random generator, so some rows are used twice
        and others never.
        """
        if self.common_seed is None or not self.shuffle:
            yield from super()._finite_generator()
            return
        for index in _order(self.py_dataset.num_batches, self.common_seed):
            yield self._standardize_batch(self.py_dataset[index])

    def on_epoch_begin(self):
        """Let `on_epoch_begin` of the PyDataset shuffle equally on all workers."""
        with self._seeded(0):
            super().on_epoch_begin()

    def on_epoch_end(self):
        """Let `on_epoch_end` of the PyDataset shuffle equally on all workers."""
        enqueuer = self.enqueuer
        if self.keeps_reading:
            self.enqueuer = None  # so that Keras does not stop it
        try:
            with self._seeded(1):
                super().on_epoch_end()
        finally:
            self.enqueuer = enqueuer

    def _seeded(self, call):
        seed = self.common_seed
        return contextlib.nullcontext() if seed is None else _seeded(seed ^ call)


@hooks.overrides("_send_py_dataset", feature=PY_DATASETS)
class SharedOrderEnqueuer(OrderedEnqueuer):
    """Keras's reader with `workers=`, with the order of all workers."""

    common_seed = None  # see `SharedOrderAdapter`

    def _send_py_dataset(self):
        """Shuffle the batches with a seed that all workers share.

        Keras's enqueuer calls this method after it chooses an order and before it reads a batch.
        """
        if self.common_seed is not None and self.py_dataset.num_batches is not None:
            self.indices = iter(_order(self.py_dataset.num_batches, self.common_seed))
        super()._send_py_dataset()


def share_order(adapter):
    """Give Keras's adapter of a `PyDataset`, and its threads, the methods of this file."""
    if type(adapter) is PyDatasetAdapter:
        adapter.__class__ = SharedOrderAdapter
        if adapter.enqueuer is not None:
            adapter.enqueuer.__class__ = SharedOrderEnqueuer


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
