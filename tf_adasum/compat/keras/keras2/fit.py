"""Hooks into training with Keras 2."""

import warnings
import weakref

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizers import is_ours
from tf_adasum.compat.keras.private_names_keras2 import DataHandler, TensorLikeDataAdapter
from tf_adasum.errors import see

# With Keras 2 all other callbacks write on all workers, because reading the statistics of replicas
# needs all workers. All workers except worker 0 write to a temporary file.
CALLBACKS_OF_WORKER_0 = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)

# Whether Keras's `BackupAndRestore` supports only one worker.
KERAS_BACKUP_IS_SINGLE_WORKER = False


@hooks.replaces(TensorLikeDataAdapter, "__init__")
def adapt_arrays(original, self, *args, **kwargs):
    """Shuffle arrays on all workers with worker 0's seed.

    In Keras each worker shuffles separately, so some rows are used twice and others never.
    """
    strategy = tf.distribute.get_strategy()
    if kwargs.get("shuffle") and is_ours(strategy):
        seed = strategy._seeds.shared_if_needed()
        if seed is not None:
            with tensorflow_compat.seeded(seed):
                return original(self, *args, **kwargs)
    return original(self, *args, **kwargs)


@hooks.replaces(keras.Model, "make_train_function")
def make_train_function(original, self, force=False):
    """Train without XLA, and let `on_nonfinite="raise"` raise a FloatingPointError.

    TensorFlow's collectives have no XLA kernels. If the user has requested XLA, print a warning.
    """
    strategy = self.distribute_strategy
    if not is_ours(strategy):
        return original(self, force)
    _leave_xla_out(self)
    is_new = self.train_function is None or force
    function = original(self, force)
    if is_new:
        self.train_function = function = strategy._nonfinite.raising_plain_errors(function)
    return function


def _leave_xla_out(model):
    """Let a model train without XLA, and warn if the user has requested XLA."""
    if model.jit_compile and not model.run_eagerly:
        warnings.warn(
            "AdasumMirroredStrategy trains this model without XLA, because TensorFlow's "
            "collectives have no XLA kernels. Compile the model with jit_compile=False to silence "
            f"this warning. {see('TFA-304')}",
            stacklevel=4,
        )
        model.jit_compile = False


# The models whose next call of `enumerate_epochs` comes from `fit`, not from an evaluation.
_about_to_train = weakref.WeakSet()

# For each model: the first epoch of its next `fit`.
_initial_epochs = weakref.WeakKeyDictionary()


@hooks.replaces(keras.Model, "_maybe_load_initial_counters_from_ckpt")
def maybe_load_initial_counters_from_ckpt(original, self, steps_per_epoch, initial_epoch):
    """Let `fit` begin with the epoch that `set_initial_epoch` has set."""
    _about_to_train.add(self)
    epoch, step = original(self, steps_per_epoch, initial_epoch)
    return _initial_epochs.pop(self, None) or epoch, step


def initial_epoch(model):
    """Return the epoch in which `fit` starts, or 0 if no epoch was set."""
    return _initial_epochs.get(model, 0)


def set_initial_epoch(model, epoch):
    """Set the epoch in which `fit` starts. With 0, `fit` uses its argument `initial_epoch`."""
    _initial_epochs[model] = epoch


@hooks.replaces(DataHandler, "_configure_dataset_and_inferred_steps")
def configure_dataset(original, self, strategy, x, steps_per_epoch, class_weight, distribute):
    """Store whether `fit` got class weights.

    Keras adds class weights to the first dataset only. Another dataset would have no class weights.
    So `enumerate_epochs` does not replace the first dataset if `fit` got class weights.
    """
    self.has_class_weight = bool(class_weight)
    original(self, strategy, x, steps_per_epoch, class_weight, distribute)


@hooks.replaces(DataHandler, "enumerate_epochs")
def enumerate_epochs(original, self):
    """Replace a dataset of `replaceable_dataset` when an epoch begins.

    Keras uses one dataset for all epochs, and creates the iterator of an epoch before it calls
    callbacks. So the function that returns the new dataset gets the number of the epoch.
    """
    following = getattr(self._adapter.get_dataset(), "next_dataset", None)
    if following is None or self.has_class_weight or self._model not in _about_to_train:
        yield from original(self)
        return
    _about_to_train.discard(self._model)
    iterator = None
    for epoch in range(self._initial_epoch, self._epochs):
        if self._insufficient_data:
            break
        dataset = following(epoch)
        if dataset is not None:
            self._dataset = self._model.distribute_strategy.experimental_distribute_dataset(dataset)
            if self._steps_per_epoch is None:
                cardinality = int(dataset.cardinality())
                self._inferred_steps = cardinality if cardinality >= 0 else None
            iterator = None
        if iterator is None or self._adapter.should_recreate_iterator():
            iterator = iter(self._dataset)
        yield epoch, iterator
        self._adapter.on_epoch_end()


def do_nothing(*args):
    """Do nothing."""


# Backups are made of whole epochs only, callbacks are called in order, assignments are not noted.
set_data_order = disable_async_callbacks = flush_async_callbacks = forget_assigned = do_nothing


def batches_of_data(model, begins):
    """Return 0 and 0, because backups are made of whole epochs only."""
    return 0, 0


def position_in_data(model, batch, has_begun=False):
    """Return `batch` unchanged, because backups are made of whole epochs only."""
    return batch


def passes_of_data(model, batch):
    """Return 0, because backups are made of whole epochs only."""
    return 0


def why_not_repeatable(model):
    """Return "", because backups are made of whole epochs only."""
    return ""


def reduction_of(variable):
    """Return None, because Keras 2 adds up the replicas' values of every metric."""


def is_model_built(model):
    """Return whether the variables of a model exist."""
    return model.built
