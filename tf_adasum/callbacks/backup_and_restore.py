"""BackupAndRestore: resume a killed training from its last backup."""

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

    With the same data and number of replicas, training resumes bit for bit, also within an epoch.
    Pass it to `fit` on every worker: worker 0 writes, and all resume from the newest backup that
    any of them has. It restores before and saves after all other callbacks, whose state is not
    saved. In a custom loop, compile the model with the loop's optimizer, call a
    `keras.callbacks.CallbackList` with this callback, and begin at `position`.

    SIGTERM or SIGUSR1 to any worker stops all workers at the same batch, with a backup and exit
    status 75 (`SystemExit`). On another number of replicas, weights are restored exactly, and
    callbacks' ``on_cluster_change(old, new)`` is called. Details: docs/checkpoints.md.

    Args:
        backup_dir: str or path, a local directory that is used for nothing else.
        save_freq: `"epoch"`, or int, the number of batches between backups; False for no backups.
            Defaults to `"epoch"`.
        double_checkpoint: bool, whether to keep two backups instead of one. Defaults to `True`,
            unlike Keras.
        delete_checkpoint: bool, whether to remove the backups when `fit` ends. Defaults to `True`.
        on_signal: the signals that stop training, such as ``["SIGTERM", "SIGUSR2"]``, or None.
            Defaults to `"auto"`: SIGTERM and SIGUSR1 unless the program handles or ignores them.
        exit_code: int, the exit status of all workers after a signal. Defaults to 75,
            `EX_TEMPFAIL`.
        refuse_nonfinite: bool, whether weights with a NaN or an infinity are an error instead of a
            backup. Defaults to `True`.

    Attributes:
        position: pair of ints, the epoch and the batch that come next, counted from 0. It is set
            when training begins, and (0, 0) without a backup.

    Raises:
        ValueError: if an argument is wrong; with Keras 2; when training begins, if the model is not
            built or not compiled, or the backup belongs to another model or optimizer.
        tf_adasum.errors.DamagedBackupError: if there are backups but none can be read.
        OSError: if worker 0 cannot write a backup.
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
        if keras_compat.IS_KERAS_2:
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
        is_status = arguments.is_count(exit_code) and exit_code <= 255
        arguments.check("exit_code", exit_code, is_status, "must be an int from 1 to 255")
        self.on_signal, self.exit_code = on_signal, exit_code
        self.refuse_nonfinite = refuse_nonfinite
