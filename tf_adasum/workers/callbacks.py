"""Lets every worker pass the same list of callbacks to `fit`, although only worker 0 writes files.

If the model belongs to an `AdasumMirroredStrategy` on more than one worker, this module changes the
list that `keras.callbacks.CallbackList` calls. (The ModelCheckpoint and BackupAndRestore of Keras 2
support several workers and are not changed.)

* `ModelCheckpoint`, `CSVLogger` and `TensorBoard`, and their subclasses, run on worker 0 only,
  because several workers that write to one path destroy or lock each other's files. Nothing is
  lost, because all replicas hold the same weights and get the same logs. Callbacks of trackers
  (W&B, MLflow, ...), callbacks with the attribute `only_on_first_worker = True`, and callbacks
  inside `tf_adasum.callbacks.OnFirstWorker` also run on worker 0 only. If such a callback calls a
  method that needs all workers, such as `evaluate`, an error names the method (`first_worker`).
* The callbacks of `backup.backup_callbacks` replace `BackupAndRestore`, both Keras's class and
  ours. All workers take part in a backup, even if they do not have the callback. The callback of
  worker 0 decides when a backup is saved.
  Any other subclass of Keras's `BackupAndRestore` is refused, because it restores one worker.
* After `on_train_begin` of all callbacks, the workers compare their weights, bit for bit.
  Otherwise, a worker that restored or assigned other weights would continue with these weights.
  `strategy._check_model` names the first weight that differs.
* If one worker has set `model.stop_training` by the end of an epoch, all workers stop. A callback
  that stops the training *within* an epoch must do so on all workers after the same batch.
  Otherwise, the other workers would wait for gradients that are never sent.

* If no callback of any worker reads the logs of batches, the steps of `fit` and `evaluate` do not
  exchange them, see `compat.keras.batch_logs`.

All other callbacks run on every worker, with the same logs. So `EarlyStopping`,
`ReduceLROnPlateau`, `LearningRateScheduler` and `TerminateOnNaN` decide the same on every worker.

The workers use collectives to agree. So all workers have to call the `CallbackList`, also in a
custom loop. The lists may hold different callbacks; for example, ``callbacks if rank == 0 else []``
works. But a callback that changes the training step, such as `OrthogonalityTracker`, must be in the
list of every worker. A callback that waits for other workers must also be in every list. It has the
attribute `settings_to_compare`, a str with its settings. The workers compare these settings when
training starts.

If there is only one worker, the list is not changed, unless it contains our `BackupAndRestore`.
"""

from collections.abc import Sequence

import keras
import numpy as np

from tf_adasum.backup import backup_callbacks
from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import see
from tf_adasum.health import call_log
from tf_adasum.workers.first_worker import FirstWorkerOnly, is_for_first_worker
from tf_adasum.workers.workers import Workers


def install() -> None:
    """Install the hooks into Keras, including the hook below; a second call does nothing."""
    keras_compat.install()


@keras_compat.hooks.replaces(keras.callbacks.CallbackList, "set_model")
def set_model(original, self, model):
    """Replace the list of callbacks by the list that `arrange` returns.

    The list is replaced before the callbacks get the model, because some callbacks write to a
    directory as soon as they get the model.
    """
    if model is not None:
        callbacks = map(keras_compat.without_hidden_values, self.callbacks)
        self.callbacks = arrange(list(callbacks), model, self)
    return original(self, model)


def arrange(
    callbacks: Sequence[keras.callbacks.Callback],
    model: keras.Model,
    callback_list: keras.callbacks.CallbackList,
) -> list[keras.callbacks.Callback]:
    """Return the list that this worker calls instead of `callbacks`.

    Args:
        callbacks: the callbacks that the user passed on this worker.
        model: the model that is trained.
        callback_list: the `keras.callbacks.CallbackList` that calls the callbacks.
    """
    if any(isinstance(one, backup_callbacks.RestoreFirst | AverageStatistics) for one in callbacks):
        return list(callbacks)  # arranged already
    equal = [AverageStatistics()] if keras_compat.is_ours(model.distribute_strategy) else []
    workers = Workers.of_model(model)
    backups = [one for one in callbacks if _is_driven(one, workers)]
    if workers.count == 1 and not backups:
        return [*equal, *callbacks]
    others = [one for one in callbacks if not _is_driven(one, workers)]
    if workers.count > 1:
        _refuse_other_backups(others)
        if workers.rank > 0:
            others = [one for one in others if not is_for_first_worker(one)]
        others = [*map(FirstWorkerOnly.around, others), AfterUserCallbacks(workers, others)]
    restore = backup_callbacks.RestoreFirst(workers, backups, callback_list)
    return [*equal, restore, *others, backup_callbacks.SaveLast(restore)]


def _is_driven(callback, workers):
    """Return whether a callback makes backups, which `RestoreFirst` and `SaveLast` do instead."""
    if isinstance(callback, backup_callbacks.BackupArguments):
        return True
    is_keras_own = type(callback) is keras.callbacks.BackupAndRestore  # and not a subclass
    return is_keras_own and workers.count > 1 and not keras_compat.IS_KERAS_2


def _refuse_other_backups(callbacks):
    for one in callbacks:
        if isinstance(one, keras.callbacks.BackupAndRestore) and not keras_compat.IS_KERAS_2:
            raise ValueError(
                "keras.callbacks.BackupAndRestore restores one worker only. Use "
                "tf_adasum.callbacks.BackupAndRestore on all workers. "
                f"Received: {type(one).__name__}, a subclass of Keras's callback"
            )


class AverageStatistics(keras.callbacks.Callback):
    """The first callback, which averages the replicas' statistics before other callbacks save."""

    def on_epoch_end(self, epoch, logs=None):
        """Average statistics such as those of BatchNormalization, and warn of skipped steps."""
        keras_compat.average_statistics(self.model)
        self.model.distribute_strategy._nonfinite.warn_once()


class AfterUserCallbacks(keras.callbacks.Callback):
    """The callback after the user's callbacks, which lets all workers agree.

    It compares the workers' weights and learning rates, finds out whether a callback reads the logs
    of batches, and stops all workers together.

    Args:
        workers: the `Workers`.
        callbacks: the user's callbacks that this worker calls.
    """

    def __init__(self, workers, callbacks):
        super().__init__()
        self.workers, self._callbacks = workers, callbacks
        self._trains = self._has_begun = False

    def on_train_begin(self, logs=None):
        """Check that all workers start with the same waiting callbacks, and the same weights."""
        self._trains, self._has_begun = True, False
        waiting = (getattr(callback, "settings_to_compare", None) for callback in self._callbacks)
        self.workers.check_same(
            "Callbacks that wait for the other workers have to be passed on all workers, with the "
            "same arguments.",
            ", ".join(each for each in waiting if each is not None) or "none",
            code="TFA-510",
        )
        self.model.distribute_strategy._check_model(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        """Log the epoch, for errors; find out in the first whether a callback reads batch logs."""
        call_log.epoch(epoch + 1)
        if not self._has_begun:  # `on_epoch_begin` of some progress bars adds their methods
            self._leave_unread("fit", "evaluate")
        self._has_begun = True

    def on_train_end(self, logs=None):
        """End the training."""
        self._trains = False

    def on_test_begin(self, logs=None):
        """Find out the same for `evaluate`, if it is not the validation of `fit`."""
        if not self._trains:
            self._leave_unread("evaluate")

    def _leave_unread(self, *calls):
        if keras_compat.are_calls_under_way():  # otherwise, this is a custom loop
            own = [keras_compat.reads_logs_of(self.model, self._callbacks, call) for call in calls]
            reads = self.workers.gather(own).any(axis=0)
            unread = (call for call, is_read in zip(calls, reads, strict=True) if not is_read)
            keras_compat.skip_log_reduction(unread)

    def on_epoch_end(self, epoch, logs=None):
        """Stop all workers if one stops; check that all workers have the same learning rate."""
        rate = keras_compat.learning_rate_of(self.model)
        table = self.workers.gather([self.model.stop_training, *np.array([rate]).view(np.int64)])
        self.model.stop_training = bool(table[:, 0].any())
        if (table[:, 1] != table[0, 1]).any():
            rates = enumerate(table[:, 1].copy().view(np.float64))
            received = ", ".join(f"worker {rank}: {own:.7g}" for rank, own in rates)
            raise ValueError(
                f"After epoch {epoch + 1} the workers have different learning rates: {received}. "
                "Set the same learning rate in a callback that runs on all workers. "
                f"{see('TFA-511')}"
            )
