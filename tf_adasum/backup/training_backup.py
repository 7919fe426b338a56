"""Writes the state of a training regularly, and resumes from it.

The state of all replicas (`training_state`) is in one file (`backup_files`), which worker 0 writes.
Even if any process is killed at any time, the file is complete or does not exist. No other file has
to match this file. At a restart, any worker may have the file, and sends it to the other workers.
"""

import json
import random
import types
import warnings

from tf_adasum import atomic_files
from tf_adasum.backup import signals, training_state
from tf_adasum.backup.backup_files import Backup, BackupFiles
from tf_adasum.backup.data_order import DataOrder
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see

# The exit status after a signal has stopped a training: EX_TEMPFAIL of <sysexits.h>, "try again".
EXIT_CODE = 75

# A file of `keras.callbacks.BackupAndRestore`.
FILE_OF_KERAS = "latest.weights.h5"


class TrainingBackup:
    """The backups of one `fit`; all workers call its methods.

    Args:
        workers: the `Workers`.
        folder: a local directory that is used for nothing else; None for a worker without one.
        keep: int, how many backups are kept.
        save_freq: "epoch", a number of batches, or False.
        delete: bool, whether the backups are removed at the end of the training.
        on_signal: dict of the `numbers` of the signals that stop the training, of `leaves_handlers`
            (whether to leave a signal alone if the program ignores it, or has its own handler for
            it), and of the `exit_code` of all workers.
        refuse_nonfinite: bool, whether to refuse weights with a NaN or infinity.

    Attributes:
        folder: the directory of this worker's backups; None if this worker has no directory.
        on_signal: the argument as an object; None if no signal stops the training.
        position: the epoch and the batch that come next when training begins, counted from 0.
        replicas_before: the number of replicas that wrote the restored backup; None without one.

    Raises:
        ValueError: if the directory is not local.
    """

    def __init__(self, workers, folder, keep, save_freq, delete, on_signal, refuse_nonfinite):
        self._refuse_nonfinite = refuse_nonfinite
        self.save_freq, self._delete = save_freq, delete
        self._workers, self._is_writer = workers, workers.rank == 0
        self.on_signal = types.SimpleNamespace(**on_signal) if on_signal["numbers"] else None
        if folder is not None:
            check_local(folder)
        self._files = BackupFiles(folder, keep)
        self.folder = self._files.folder
        self._batches_since = self._batch = 0
        self._saved = None  # the progress of the last backup
        self._order = self._resumed = self.replicas_before = None

    @classmethod
    def agreed(cls, callbacks, workers):
        """Return this worker's `TrainingBackup`; None if worker 0 has no `BackupAndRestore`.

        All workers use the settings of worker 0.

        Args:
            callbacks: list of this worker's `keras.callbacks.BackupAndRestore`s.
            workers: the `Workers`.

        Raises:
            ValueError: on all workers, if worker 0 has more than one `BackupAndRestore`; on a
                worker whose backup directory is not local.
        """
        own = callbacks[0] if callbacks else None
        settings = json.dumps([len(callbacks), own and _settings(own)], default=int)
        count, settings = json.loads(workers.broadcast_bytes(0, settings.encode()))
        if count > 1:
            raise ValueError(
                "`callbacks` may have only one BackupAndRestore. "
                f"Received: {count} of them on worker 0"
            )
        if count == 0:
            return None
        folder = own.backup_dir if own else None
        keep = 2 if own and own.double_checkpoint else 1
        return cls(workers, folder, keep, **settings)

    def begin(self, model):
        """Restore the newest good backup, if there is one; called when training begins.

        Raises:
            ValueError: if the model is not built or not compiled, or the backup belongs to another
                model or to Keras's callback.
            tf_adasum.errors.DamagedBackupError: if there are backups, but none can be read.
            OSError: if worker 0 cannot write backups.
        """
        if not keras_compat.is_model_built(model):
            raise ValueError(
                "BackupAndRestore needs a model that is built before `fit`. Give it a keras.Input, "
                "or call it on a batch before `fit`. "
                f"Received: {model.name!r}, which is not built {see('TFA-603')}"
            )
        if not getattr(model, "compiled", True):  # Keras 2 has no such property
            raise ValueError(
                "BackupAndRestore saves the optimizer that the model is compiled with. In a custom "
                "loop, call model.compile(optimizer=optimizer) before on_train_begin. "
                f"Received: {model.name!r}, which is not compiled"
            )
        training_state.build_optimizer(model)
        self._batches_since, self._resumed, self.position = 0, None, (0, 0)
        self._prepare(model)
        backup = self._newest(model)
        if backup is not None:
            is_within_epoch = backup.progress[1] > 0
            backup = self._with_batch_size(model, backup)
            self._restore(model, backup, is_within_epoch)
            self.position = epoch, batch = backup.progress
            if self._is_writer:  # Keras's "Epoch 1/4" does not show a resume
                where = f", after batch {batch}" * (batch > 0)
                print(f"tf_adasum: resuming at epoch {epoch + 1}{where}", flush=True)
        elif self._workers.any(self.folder is not None and (self.folder / FILE_OF_KERAS).exists()):
            raise ValueError(
                "`backup_dir` holds a backup of keras.callbacks.BackupAndRestore, and training "
                f"cannot resume from it. Load its {FILE_OF_KERAS} into the model, remove the file "
                "and pass `initial_epoch` to `fit`, or use another `backup_dir`. "
                f"Received: backup_dir={str(self.folder)!r} {see('TFA-606')}"
            )
        if self._order is None:
            self._order = DataOrder(self._workers.broadcast(_draw_seed(model)))
        keras_compat.set_data_order(model, self._order)

    def begin_epoch(self, model, epoch):
        """Restore the metrics of an interrupted epoch; called after Keras resets the metrics."""
        self._order.epoch = epoch
        if self._order.first_epoch is None:
            self._order.first_epoch = epoch
        self._batch = 0
        if self._resumed is not None:
            self._batch = self._resumed.progress[1]  # `end_batch` counts only later batches
            if self._batch:  # else all rows of the epoch are trained again
                metrics = [training_state.METRICS]
                self._order.has_metrics = self._assign(model, self._resumed.arrays, metrics)

    def begin_batches(self, model):
        """Undo what callbacks such as `LearningRateScheduler` changed in `on_epoch_begin`.

        Only does something after a resume: the backup already includes these changes, so they would
        be made twice. Called before the first batch of the epoch.
        """
        if self._resumed is not None:
            self._assign(model, self._resumed.arrays, training_state.SECTIONS)
            self._resumed = None

    def end_batch(self, model, batch):
        """Save if a backup is due; called after each batch or `steps_per_execution` batches."""
        self._batches_since += max(batch + 1 - self._batch, 1)
        self._batch = batch + 1
        if self.saves_within_epochs and self._batches_since >= self.save_freq:
            self._save(model, self._order.epoch, self._batch)

    @property
    def exists(self):
        """Whether there is a backup, of this training or of the training that it resumes."""
        return self._saved is not None

    @property
    def saves_within_epochs(self):
        """Whether `save_freq` is a number of batches."""
        return self.save_freq not in ("epoch", False)

    def end_epoch(self, model, epoch):
        """Save if a backup is due; called when an epoch ends, after all changes of the model."""
        self._batch = 0
        if self.save_freq == "epoch":
            self._save(model, epoch + 1, 0)

    def end(self, model):
        """Remove the backups if `delete` is True; called when the training ends."""
        keras_compat.set_initial_epoch(model, 0)  # the next `fit` starts at its own `initial_epoch`
        keras_compat.set_data_order(model, None)
        if self._delete:
            # Wait until all workers have reached this line, because the last backup is needed if a
            # worker fails in the last step.
            self._workers.any(False)
            if self._is_writer:
                self._files.remove()

    def save_now(self, model, batch, *, epoch=None, has_begun=False, is_validating=False):
        """Save although no backup is due, because the training stops.

        Args:
            model: the model.
            batch: how many batches of the epoch are done; 0 after the epoch; None for all batches
                so far.
            epoch: the epoch in which the next start resumes, counted from 0. Defaults to `None`:
                the current epoch if some of its batches are done, otherwise the epoch after it.
            has_begun: whether Keras has already counted the next batch. Defaults to `False`.
            is_validating: whether all steps of the epoch are done, and its validation runs.
                Defaults to `False`.
        """
        batch = self._batch if batch is None else batch
        if epoch is None:
            epoch = self._order.epoch if batch else self._order.epoch + 1
        if self._saved == (epoch, batch) and not is_validating:
            return
        self._save(model, epoch, batch, self._batches_since, has_begun, is_validating)

    def _save(self, model, epoch, batch, since=0, has_begun=False, is_validating=False):
        iterator, done = keras_compat.iterator_of_training(model), 0 if is_validating else batch
        position, passes, rows, batches = done, 0, 0, 0  # in a custom loop
        if iterator is not None:
            position, passes = iterator.position(done, has_begun), iterator.passes(done)
            rows, batches = iterator.batches()
        if self._saved is None and self._is_writer and iterator is not None:
            if reason := iterator.why_not_repeatable():
                warnings.warn(
                    "If training resumes from a backup, some rows of the interrupted epoch will be "
                    f"used twice and others left out, because {reason} {see('TFA-609')}",
                    stacklevel=2,
                )
        self._batches_since, self._saved = 0, (epoch, batch)
        sections = [*training_state.SECTIONS, *([training_state.METRICS] if batch else [])]
        arrays = training_state.gather_state(model, self._workers, sections)
        if weight := self._refused_weight(model, arrays):
            raise FloatingPointError(
                f"No backup is written at epoch {epoch + 1}, batch {batch + 1}: the weight "
                f"{weight!r} has a NaN or an infinity, and training cannot recover from it. Older "
                "backups are kept. Restart with a lower learning rate, or with "
                'AdasumMirroredStrategy(on_nonfinite="skip"). To write such a backup anyway, pass '
                f"BackupAndRestore(refuse_nonfinite=False) {see('TFA-608')}"
            )
        if self._is_writer:
            position = max(position, self._order.position_ahead)
            facts = {
                "epoch": epoch,
                "batch": batch,
                "position": position,
                "pass": self._order.began,
                "seed": self._order.seed,
                "since": since,
                "validating": int(is_validating),
                "rows": rows,
                "batches": batches,
                "passes": passes,
                "first": self._order.first_epoch or 0,
                "replicas": keras_compat.replicas_of(model),
            }
            self._files.write(Backup(facts, arrays))

    def _refused_weight(self, model, arrays):
        """Return the path of a weight whose value prevents a backup; None if there is none."""
        return training_state.nonfinite_weight(model, arrays) if self._refuse_nonfinite else None

    def _prepare(self, model):
        """Raise an OSError, on all workers, if worker 0 cannot write backups."""
        trouble = ""
        if self._is_writer and self.save_freq is not False:
            try:
                self._files.prepare(training_state.smallest_size(model))
            except OSError as error:
                trouble = str(error)
        if trouble := self._workers.broadcast_bytes(0, trouble.encode()):
            raise OSError(trouble.decode())

    def _newest(self, model):
        """Return, on all workers, the newest good backup of any worker; None if there is none."""

        def check(backup, path):
            training_state.check(model, backup.arrays, path)
            if weight := self._refused_weight(model, backup.arrays):
                raise ValueError(
                    f"{path} has a NaN or an infinity in the weight {weight!r}. To use it, pass "
                    f"BackupAndRestore(refuse_nonfinite=False) {see('TFA-608')}"
                )

        return self._files.newest(self._workers, check)

    def _with_batch_size(self, model, backup):
        """Return a backup with its position counted in batches of the `fit` that begins."""
        if backup.facts.get("validating", 0):
            return backup
        iterator = keras_compat.iterator_of_training(model, begins=True)
        converted = backup.with_batch_size(*((0, 0) if iterator is None else iterator.batches()))
        if converted.progress != backup.progress:
            self._files.keep_only_next()
        return converted

    def _restore(self, model, backup, is_within_epoch):
        facts = backup.facts
        self.replicas_before = facts.get("replicas")
        self._assign(model, backup.arrays, training_state.SECTIONS)
        keras_compat.set_initial_epoch(model, facts["epoch"])
        self._batches_since, self._saved = facts.get("since", 0), backup.progress
        self._order = DataOrder(facts["seed"], facts)
        if is_within_epoch:
            self._resumed = backup

    def _assign(self, model, arrays, sections):
        return training_state.assign(model, self._workers, arrays, sections)


def _settings(callback):
    """Return the settings of a callback, for `TrainingBackup`; Keras's class has only some."""
    on_signal = getattr(callback, "on_signal", "auto")
    return {
        "save_freq": callback.save_freq,
        "delete": callback.delete_checkpoint,
        "on_signal": {
            "numbers": signals.numbers_of(on_signal),
            "leaves_handlers": on_signal == "auto",
            "exit_code": getattr(callback, "exit_code", EXIT_CODE),
        },
        "refuse_nonfinite": getattr(callback, "refuse_nonfinite", True),
    }


def check_local(folder):
    """Raise a ValueError unless a directory for backups is local."""
    if not atomic_files.is_local(folder):
        raise ValueError(
            "`backup_dir` must be a directory in this machine's file system, because a file has "
            f"to be replaced in one step. Received: backup_dir={folder!r}"
        )


def _draw_seed(model):
    """Draw a seed for the order of arrays, reproducible from TensorFlow's global seed."""
    strategy = model.distribute_strategy
    if keras_compat.is_ours(strategy):
        return strategy._seeds.draw()
    own = tensorflow_compat.global_seed()
    return random.Random(None if own is None else int(own)).getrandbits(31)
