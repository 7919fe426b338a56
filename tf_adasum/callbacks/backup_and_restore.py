"""BackupAndRestore: a training that is killed at any moment goes on where its last backup was."""

from __future__ import annotations

import os
from collections.abc import Sequence

import keras

from tf_adasum import arguments
from tf_adasum.backup import signals
from tf_adasum.backup.driver import BackupArguments
from tf_adasum.backup.training_backup import EXIT_CODE, check_local
from tf_adasum.seams import keras as keras_seam
from tf_adasum.workers import callbacks as worker_callbacks


class BackupAndRestore(BackupArguments):
    """Callback that backs up all that a training consists of; the next `fit` goes on from there.

    It differs from `keras.callbacks.BackupAndRestore` in this:

    * A backup is one file, which is there as a whole or not at all. One that was cut off or
      changed, or is another model's, is refused with a warning, and the one before it is used; if
      none is good, training does not start from the beginning but fails.
    * A new backup is written beside the last one. If there is no room for one, or the directory
      cannot be written, `fit` fails when it begins; if there is room for only one, a warning says
      so.
    * With ``save_freq=100`` training goes on *within* the epoch, with the next batch.
    * It holds every variable that the next step depends on: weights, the optimizer's slots,
      accumulated gradients and moving averages, the aggregation rule's state, the state of random
      generators (dropout), and within an epoch the metrics. Where replicas have different values
      (`DeltaAdasum`'s slots, BatchNormalization within an epoch), it holds those of all replicas.
    * It restores before all other callbacks begin, and saves after all others, wherever it stands
      in the list: a backup holds what they change, such as a learning rate.
    * SIGTERM or SIGUSR1 to any worker, as at a scheduler's time limit, stops all of them: they end
      the batch, back up, and exit with 75 (`SystemExit`, so that ``finally`` blocks run). A second
      signal, a second or more later, does what it would have done without this callback.
    * On several workers worker 0 writes. When training begins, all go on from the backup of the
      worker that has the newest one: the directory need not be a shared one.

    Training goes on bit for bit as if it had not been interrupted, provided the data come in the
    same order: arrays do, shuffled or not; a `tf.data.Dataset` must not be shuffled without a seed,
    or differently after each start. The batches of the epoch that are done already are read again
    and left out. With `steps_per_epoch` a dataset of known length goes on where it was; one without
    end, as of `repeat()`, begins anew, and the batches done in the epoch are left out. What other
    callbacks remember (`EarlyStopping`'s patience) is not in a backup.

    On another number of replicas, weights are exact; where each replica has its own values, replica
    r takes those of replica r modulo the old number; AdaCons's momentum starts anew, with a
    warning; AdaScale takes the new S.

    Under an `AdasumMirroredStrategy` on several workers, `keras.callbacks.BackupAndRestore` becomes
    one of these. Whichever it is, give it to `fit` on every worker; a training has one. A custom
    loop calls it by way of a `keras.callbacks.CallbackList`.

    Args:
        backup_dir: str or path, a local directory for nothing else.
        save_freq: `"epoch"`, or int: after how many batches; False for never. Defaults to
            `"epoch"`.
        double_checkpoint: bool, whether the backup before the last one is kept, too. Defaults to
            `True`.
        delete_checkpoint: bool, whether the backups are removed when `fit` ends. Defaults to
            `True`.
        on_signal: which signals stop the training with a backup, while it runs: ``"auto"``, SIGTERM
            and SIGUSR1, each unless the program handles or ignores it itself; names or numbers of
            signals, ``"SIGTERM"`` or ``["SIGTERM", "SIGUSR2"]``, of which handlers of the program's
            own are called after the backup; or None. Those of worker 0's callback hold on all
            workers, and in the main thread only. Defaults to `"auto"`.
        exit_code: int, the code with which all workers exit then, from 1 to 255. Defaults to 75,
            `EX_TEMPFAIL`.
        refuse_nonfinite: bool, whether to refuse weights with a NaN or an infinity: no backup of
            them is written, `fit` ends with an error instead, and a restart uses an older backup.
            Defaults to `True`.

    Raises:
        ValueError: with Keras 2, which does it by itself; if `backup_dir` is not local; for what is
            no signal, or SIGKILL or SIGSTOP, which nobody can handle; when
            training begins, if the model is not built, the backup is one of another model or
            optimizer, or there are two of these callbacks.
        tf_adasum.errors.DamagedBackup: when training begins, if there are backups and none of them
            can be read.
        OSError: when training begins, if worker 0 cannot write to the directory, or no backup fits;
            when a backup cannot be written.
        FloatingPointError: when it is time for a backup, if a trainable weight is not finite.
        SystemExit: where a signal stops the training.

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
        if not keras_seam.BACKS_UP_ONE_WORKER:
            raise ValueError(
                "Keras 2 backs up all workers by itself: use keras.callbacks.BackupAndRestore. "
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
