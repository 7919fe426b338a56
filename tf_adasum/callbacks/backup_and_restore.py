"""BackupAndRestore: a training that is killed at any moment goes on where its last backup was."""

import keras

from tf_adasum.backup.training_backup import TrainingBackup
from tf_adasum.seams import keras as keras_seam


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Backs up all that a training consists of, and goes on from there when `fit` is called again.

    As `keras.callbacks.BackupAndRestore`, with these differences:

    * A backup is one file, which is there as a whole or not at all. One that was cut off or changed
      is refused by its digest, with a warning, and the one before it is used; if none is good,
      training does not start from the beginning but fails.
    * After ``save_freq=100`` training goes on *within* the epoch, with the next batch.
    * It holds every variable that the next step depends on: weights, the optimizer's slots,
      accumulated gradients and moving averages, the aggregation rule's state, the state of random
      generators (dropout), and within an epoch the metrics. Where replicas have different values
      (`DeltaAdasum`'s slots, BatchNormalization within an epoch), those of all replicas: they are
      sent to worker 0 then.
    * On several workers worker 0 writes. When training begins, all go on from the backup of the
      worker that has the newest one: the directory need not be a shared one.

    It goes on bit for bit as if it had not been interrupted, provided the data come in the same
    order: arrays do, shuffled or not; a `tf.data.Dataset` must not be shuffled without a seed, or
    differently after each start. The batches of the epoch that are done already are read again, and
    left out. With `steps_per_epoch` a dataset of known length is gone on with where it was; one
    without end, as of `repeat()`, begins anew, with the batch's number within the epoch. What other
    callbacks remember (`EarlyStopping`'s patience) is not in a backup.

    On another number of replicas, weights are exact; where each replica has its own values, replica
    r goes on with those of replica r modulo their number; AdaCons's momentum starts anew, with a
    warning; AdaScale takes the new S.

    Under an `AdasumMirroredStrategy` on several workers, `keras.callbacks.BackupAndRestore` becomes
    one of these. Whichever it is, give it to `fit` on every worker.

    Args:
        backup_dir: a local directory for nothing else.
        save_freq: "epoch", or after how many batches. False for never.
        double_checkpoint: whether the backup before the last one is kept, too.
        delete_checkpoint: whether the backups are removed when `fit` ends.

    Raises:
        ValueError: with Keras 2, which does it by itself; if `backup_dir` is not local; when
            training begins, if the model is not built, or the backup is one of another model or
            optimizer.
        DamagedBackup: when training begins, if there are backups and none of them can be read.

    Example:
        >>> backup = tf_adasum.callbacks.BackupAndRestore("backup", save_freq=100)
        >>> model.fit(x, y, epochs=10, callbacks=[backup])
    """

    of_workers = True  # see `worker_callbacks.is_backup`

    def __init__(
        self, backup_dir, save_freq="epoch", double_checkpoint=True, delete_checkpoint=True
    ):
        if not keras_seam.BACKS_UP_ONE_WORKER:
            raise ValueError(
                "Keras 2 backs up all workers by itself: use keras.callbacks.BackupAndRestore. "
                f"Received: tf_adasum.callbacks.BackupAndRestore with Keras {keras.__version__}"
            )
        keras_seam.install()
        super().__init__(backup_dir, save_freq, double_checkpoint, delete_checkpoint)
        if save_freq is True or (save_freq not in ("epoch", False) and save_freq < 1):
            raise ValueError(
                "`save_freq` must be 'epoch', a number of batches, or False. "
                f"Received: save_freq={save_freq!r}"
            )
        self._backup = TrainingBackup.like(self)

    def on_train_begin(self, logs=None):
        """Restores the newest good backup, if there is one."""
        self._backup.begin(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        """Restores the metrics of an epoch that was interrupted."""
        self._backup.begin_epoch(self.model, epoch)

    def on_train_batch_begin(self, batch, logs=None):
        """Restores what other callbacks have changed in an epoch that was interrupted."""
        self._backup.begin_batches(self.model)

    def on_train_batch_end(self, batch, logs=None):
        """Saves after every `save_freq` batches."""
        self._backup.end_batch(self.model, batch)

    def on_epoch_end(self, epoch, logs=None):
        """Saves after every epoch."""
        self._backup.end_epoch(self.model, epoch)

    def on_train_end(self, logs=None):
        """Removes the backups."""
        self._backup.end(self.model)
