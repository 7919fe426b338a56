"""BackupAndRestore: resume a killed training from its last backup."""

from __future__ import annotations

import os
from collections.abc import Sequence

import keras

from tf_adasum import arguments
from tf_adasum.backup import signals
from tf_adasum.backup.backup_callbacks import BackupArguments
from tf_adasum.backup.training_backup import EXIT_CODE, check_local
from tf_adasum.compat import keras as keras_compat
from tf_adasum.workers import callbacks as worker_callbacks


class BackupAndRestore(BackupArguments):
    """Callback that backs up the whole state of a training, so that the next `fit` can resume.

    It differs from `keras.callbacks.BackupAndRestore` as follows:

    * A backup is one file, which is complete or does not exist. A file that is cut off or damaged,
      or belongs to another model, is refused with a warning, and the previous backup is used. If
      no backup can be used, training fails instead of starting from the beginning.
    * A new backup is written next to the last backup. `fit` fails at its beginning if the disk has
      no room for a backup, or if the directory cannot be written to. `fit` warns if there is room
      for only one backup.
    * With ``save_freq=100``, training resumes *within* the epoch, at the next batch.
    * A backup holds every variable that the next step depends on: weights, the optimizer's slots,
      accumulated gradients and moving averages, the state of the aggregation rule, the state of
      random generators (dropout), and within an epoch the metrics. If replicas have different
      values (slots of `DeltaAdasum`, BatchNormalization within an epoch), it holds the values of
      all replicas.
    * It restores before all other callbacks and saves after all other callbacks, wherever it is in
      the list. So a backup includes the changes of other callbacks, such as a learning rate.
    * SIGTERM or SIGUSR1 to any worker, for example at the time limit of a scheduler, stops all
      workers. They finish the batch, write a backup, and exit with status 75 (`SystemExit`, so that
      ``finally`` blocks run). A second signal, at least a second later, has its usual effect.
    * On several workers, worker 0 writes the backups. When training begins, all workers resume from
      the newest backup that any worker has, so the directory need not be shared.

    If the data come in the same order, training resumes bit for bit as if it had not been
    interrupted. Arrays come in the same order, shuffled or not. The order of a `tf.data.Dataset`
    changes only if it is shuffled without a seed, or differently after each start. In the
    interrupted epoch, the batches already done are read again and skipped. With `steps_per_epoch`,
    a dataset of known length resumes at its position. An infinite dataset, such as with `repeat()`,
    starts from its beginning, and the batches already done in the epoch are skipped. The state of
    other callbacks (the patience of `EarlyStopping`) is not part of a backup.

    With another number of replicas, the weights are restored exactly. If each replica has its own
    values, replica r takes the values of the old replica (r modulo the old number of replicas).
    AdaCons resets its momentum, with a warning. AdaScale uses the scale S that belongs to the new
    number of replicas. When the first epoch begins, a method ``on_cluster_change(old, new)`` of any
    callback is called with both numbers of replicas, for example to change the learning rate. If
    the batch size has changed, training resumes at the first row of the epoch that was not used,
    rounded down to a whole batch.

    Under an `AdasumMirroredStrategy` on several workers, `keras.callbacks.BackupAndRestore` is
    replaced by this class. Pass one of the two callbacks to `fit`, on every worker. In a custom
    loop, call it through a `keras.callbacks.CallbackList`, and begin at `position`.

    Args:
        backup_dir: str or path, a local directory that is used for nothing else.
        save_freq: `"epoch"`, or int, the number of batches between backups; False for no backups.
            Defaults to `"epoch"`.
        double_checkpoint: bool, whether to keep the last two backups instead of only the last.
            Defaults to `True`.
        delete_checkpoint: bool, whether to remove the backups when `fit` ends. Defaults to `True`.
        on_signal: the signals that stop the training with a backup. ``"auto"`` means SIGTERM and
            SIGUSR1, except a signal that the program handles or ignores itself. To choose the
            signals, pass names or numbers, such as ``"SIGTERM"`` or ``["SIGTERM", "SIGUSR2"]``. The
            program's own handlers are then called after the backup. None means no signals. The
            setting of worker 0 applies to all workers. Signals are handled in the main thread only.
            Defaults to `"auto"`.
        exit_code: int, the exit status of all workers after a signal, from 1 to 255. Defaults to
            75, `EX_TEMPFAIL`.
        refuse_nonfinite: bool, whether to refuse weights with a NaN or an infinity. If so, a
            backup with such a weight is not written, `fit` ends with an error, and a restart uses
            an older backup. Defaults to `True`.

    Attributes:
        position: pair of ints, the epoch and the batch that come next, counted from 0. It is set
            when training begins, and (0, 0) without a backup.

    Raises:
        ValueError: with Keras 2, whose own callback backs up all workers; if `backup_dir` is not
            local; if `on_signal` is not a signal, or is SIGKILL or SIGSTOP, which no program can
            handle. When training begins: if the model is not built, if the backup belongs to
            another model or optimizer, or if there are two of these callbacks.
        tf_adasum.errors.DamagedBackup: when training begins, if there are backups but none can be
            read.
        OSError: when training begins, if worker 0 cannot write to the directory, or no backup fits
            on the disk; later, if a backup cannot be written.
        FloatingPointError: when a backup is due, if a trainable weight is not finite.
        SystemExit: if a signal stops the training.

    Example:
        >>> backup = tf_adasum.callbacks.BackupAndRestore("backup", save_freq=100)
        >>> history = model.fit(x, y, epochs=10, callbacks=[backup], verbose=0)
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike,
        save_freq: str | int = "epoch",
        double_checkpoint: bool = True,
        delete_checkpoint: bool = True,
        *,
        on_signal: str | int | Sequence[str | int] | None = "auto",
        exit_code: int = EXIT_CODE,
        refuse_nonfinite: bool = True,
    ):
        if not keras_compat.KERAS_BACKUP_IS_SINGLE_WORKER:
            raise ValueError(
                "With Keras 2, use keras.callbacks.BackupAndRestore, which backs up all workers. "
                f"Received: tf_adasum.callbacks.BackupAndRestore with Keras {keras.__version__}"
            )
        worker_callbacks.install()
        super().__init__(backup_dir, save_freq, double_checkpoint, delete_checkpoint)
        if save_freq not in ("epoch", False):
            expected = "must be 'epoch', a number of batches, or False"
            arguments.check_count("save_freq", save_freq, expected)
        check_local(backup_dir)
        signals.numbers_of(on_signal)
        if not arguments.is_count(exit_code) or exit_code > 255:
            raise ValueError(
                f"`exit_code` must be an int from 1 to 255. Received: exit_code={exit_code!r}"
            )
        self.on_signal, self.exit_code = on_signal, exit_code
        self.refuse_nonfinite = refuse_nonfinite
