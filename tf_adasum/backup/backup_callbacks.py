"""The callbacks that a `keras.callbacks.CallbackList` calls instead of a `BackupAndRestore`.

    [RestoreFirst, all other callbacks, SaveLast]

A backup is restored before `on_train_begin` of any other callback. A backup is written after all
other callbacks, so that it includes their changes, for example of the learning rate. This is the
same on one worker and on several workers. `workers.callbacks` adds the two callbacks to a list.
"""

import keras

from tf_adasum.backup.stop_on_signal import StopOnSignal
from tf_adasum.backup.training_backup import TrainingBackup
from tf_adasum.compat import keras as keras_compat


class BackupArguments(keras.callbacks.BackupAndRestore):
    """Stores the arguments only; callback lists call `RestoreFirst` and `SaveLast` instead."""

    position = (0, 0)

    def on_train_begin(self, logs=None):
        """Raise an error, because the list of callbacks has to be called instead."""
        raise RuntimeError(
            f"{type(self).__name__} works only inside a keras.callbacks.CallbackList, which `fit` "
            "creates. In a custom loop, create keras.callbacks.CallbackList([backup], "
            "model=model) and call the methods of that list."
        )


class RestoreFirst(keras.callbacks.Callback):
    """The callback that resumes from a backup, before all other callbacks.

    Args:
        workers: the `Workers`.
        backups: list of this worker's `BackupAndRestore`s.
        callback_list: the `keras.callbacks.CallbackList` that calls the training's callbacks.

    Attributes:
        backup: the `TrainingBackup`, set when the training begins; None without backups.
        stop: the `StopOnSignal` if a signal can stop the training; else None.
    """

    def __init__(self, workers, backups, callback_list):
        super().__init__()
        self.workers, self._backups, self._callback_list = workers, backups, callback_list
        self.backup = self.stop = None

    def on_train_begin(self, logs=None):
        """Agree on the backup of this training and restore it."""
        self.backup = TrainingBackup.agreed(self._backups, self.workers)
        if self.backup:
            self.backup.begin(self.model)
            for each in self._backups:
                each.position = self.backup.position
            if self.backup.saves_within_epochs:
                keras_compat.disable_async_callbacks(self._callback_list)
            if self.backup.on_signal:
                self.stop = StopOnSignal(self.backup, self.workers, self._callback_list)
                self.stop.begin()

    def call_on_cluster_change(self):
        """Call `on_cluster_change` of all callbacks once, if the number of replicas has changed."""
        before, self.backup.replicas_before = self.backup.replicas_before, None
        now = keras_compat.replicas_of(self.model)
        if before in (None, now):
            return
        for callback in self._callback_list.callbacks:
            if hasattr(callback, "on_cluster_change"):
                callback.on_cluster_change(before, now)

    def on_epoch_begin(self, epoch, logs=None):
        """Restore the metrics of an epoch that was interrupted."""
        if self.backup:
            self.backup.begin_epoch(self.model, epoch)

    def on_train_batch_begin(self, batch, logs=None):
        """Stop before this batch if a signal has requested a stop."""
        if self.stop:
            self.stop.before_batch(self.model, batch)

    def on_test_begin(self, logs=None):
        """Keep the metrics of the training, in case a signal stops it during the validation."""
        if self.stop:
            self.stop.before_validation(self.model)

    def on_test_batch_begin(self, batch, logs=None):
        """Stop before this batch of the validation if a signal has requested a stop."""
        if self.stop:
            self.stop.before_batch_of_validation(self.model)


class SaveLast(keras.callbacks.Callback):
    """The callback that writes the backups, after all other callbacks.

    Args:
        first: the `RestoreFirst` of the same list.
    """

    def __init__(self, first):
        super().__init__()
        self.first = first

    def on_epoch_begin(self, epoch, logs=None):
        """Undo the changes of other callbacks when an interrupted epoch begins again."""
        if self.first.backup:
            self.first.backup.begin_batches(self.model)
            self.first.call_on_cluster_change()

    @keras_compat.ignores_batch_logs
    def on_train_batch_end(self, batch, logs=None):
        """Save after every `save_freq` batches."""
        if self.first.backup:
            self.first.backup.end_batch(self.model, batch)

    def on_epoch_end(self, epoch, logs=None):
        """Save after every epoch if `save_freq` is "epoch"."""
        if self.first.backup:
            self.first.backup.end_epoch(self.model, epoch)
        if self.first.stop:
            self.first.stop.after_epoch(self.model)

    def on_train_end(self, logs=None):
        """End the backups of this training: remove them if `delete_checkpoint` is True."""
        if self.first.stop:
            self.first.stop.at_end(self.model, (self.params or {}).get("epochs"))
            self.first.stop.end()
        if self.first.backup:
            self.first.backup.end(self.model)
