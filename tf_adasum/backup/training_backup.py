"""TrainingBackup: writes a training's state now and then, and goes on from it.

The state is that of all replicas (`training_state`), in one file (`backup_files`), which worker 0
writes: it is there as a whole or not at all, whoever is killed when, and nobody has to find out
which files of several belong together. Any worker may find it: all take it from that one.
"""

import pathlib
import random
import warnings

import keras
import numpy as np

from tf_adasum import atomic_files
from tf_adasum.backup import training_state
from tf_adasum.backup.backup_files import Backup, BackupFiles
from tf_adasum.backup.data_order import DataOrder
from tf_adasum.errors import DamagedBackup
from tf_adasum.seams import keras as keras_seam
from tf_adasum.seams import tensorflow as tensorflow_seam

# What `keras.callbacks.BackupAndRestore` writes.
FILES_OF_KERAS = ("latest.weights.h5", "training_metadata.json")


class TrainingBackup:
    """The backups of one `fit`; on several workers all of them call its methods.

    Args:
        backup_dir: a local directory for nothing else; None on a worker that has none.
        save_freq: "epoch", a number of batches, or False.
        keep: how many backups are kept.
        delete: whether they are removed at the end of the training.
        workers: the `Workers`; None in a single process.
    """

    def __init__(self, backup_dir, save_freq, keep, delete, workers=None):
        self.save_freq, self._delete, self._workers = save_freq, delete, workers
        self._folder = pathlib.Path(backup_dir) if backup_dir else None
        self._files = BackupFiles(backup_dir, keep) if backup_dir else None
        self._epoch = self._batches_since = self._batch = 0
        self._order = self._resumed = None

    @classmethod
    def like(cls, callback, workers=None):
        """Returns that of a `keras.callbacks.BackupAndRestore` or of a subclass.

        Raises:
            ValueError: if its directory is not local.
        """
        if not atomic_files.is_local(callback.backup_dir):
            raise ValueError(
                "`backup_dir` must be a directory of this machine's file system, where a file can "
                f"be replaced in one step. Received: backup_dir={callback.backup_dir!r}"
            )
        keep = 2 if callback.double_checkpoint else 1
        return cls(
            callback.backup_dir, callback.save_freq, keep, callback.delete_checkpoint, workers
        )

    def begin(self, model):
        """Restores the newest good backup, if there is one; called when training begins.

        Raises:
            ValueError: if the model is not built, or the backup is one of another model.
            DamagedBackup: if there are backups, and none can be read.
        """
        if not model.built:
            raise ValueError(
                "BackupAndRestore needs a model that is built before `fit`: give it an Input, or "
                f"call it on a batch. Received: {model.name!r}, which is not built"
            )
        if model.optimizer is not None and not keras_seam.is_built(
            model.optimizer
        ):  # in a custom loop
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        self._batches_since, self._resumed = 0, None
        backup = self._newest()
        if backup is not None:
            self._restore(model, backup)
            epoch, batch = backup.progress
            if self._is_writer():  # Keras says "Epoch 1/4" either way
                print(f"tf_adasum: going on at epoch {epoch + 1}, batch {batch + 1}", flush=True)
        elif self._any(self._is_of_keras()):
            self._restore_as_keras(model)
        if self._order is None:
            self._order = DataOrder(self._common(_draw_seed(model)))
        keras_seam.set_data_order(model, self._order)

    def begin_epoch(self, model, epoch):
        """Called when an epoch begins, after the metrics have been reset."""
        self._epoch = self._order.epoch = epoch
        self._batch = 0
        if self._resumed is not None:
            self._assign(model, self._resumed, [training_state.METRICS])

    def begin_batches(self, model):
        """Called once or more between all callbacks' beginning of an epoch and its first batch.

        What they change then, as a `LearningRateScheduler` does, they have changed before, in the
        epoch that was interrupted.
        """
        if self._resumed is not None:
            self._assign(model, self._resumed, training_state.SECTIONS)
            self._resumed = None

    def end_batch(self, model, batch):
        """Called after each batch, or after each `steps_per_execution` of them."""
        self._batches_since += max(batch + 1 - self._batch, 1)
        self._batch = batch + 1
        if self.saves_within_epochs and self._batches_since >= self.save_freq:
            self._save(model, self._epoch, self._batch)

    @property
    def saves_within_epochs(self):
        """Whether `save_freq` counts batches."""
        return self.save_freq not in ("epoch", False)

    def end_epoch(self, model, epoch):
        """Called when an epoch ends, after all that changes the model."""
        self._batch = 0
        if self.save_freq == "epoch":
            self._save(model, epoch + 1, 0)

    def end(self, model):
        """Called when the training ends; removes what is not needed any more."""
        keras_seam.set_initial_epoch(model, 0)  # another `fit` starts where it is asked to
        keras_seam.set_data_order(model, None)
        if self._delete:
            # Nobody is behind: one that fails in the last step goes on from the last backup.
            self._any(False)
            if self._files and self._is_writer():
                self._files.remove()
                for name in FILES_OF_KERAS:
                    (self._folder / name).unlink(missing_ok=True)

    def _save(self, model, epoch, batch):
        self._batches_since = 0
        sections = [*training_state.SECTIONS, *([training_state.METRICS] if batch else [])]
        arrays = training_state.collect(model, self._workers, sections)
        if self._is_writer():
            facts = {
                "epoch": epoch,
                "batch": batch,
                "position": keras_seam.position_in_data(model, batch),
                "pass": self._order.began,
                "seed": self._order.seed,
                "replicas": model.distribute_strategy.num_replicas_in_sync,
            }
            self._files.write(Backup(facts, arrays))

    def _newest(self):
        """Returns, on all workers, the newest good backup that one has; None if there is none."""
        found, error = None, None
        try:
            found = self._files.newest() if self._files else None
        except DamagedBackup as damaged:
            error = damaged
        if not self._workers:
            if error:
                raise _none_good(str(error), self._folder)
            return found and found[1]
        progress = found[1].progress if found else (-1, -1)
        table = self._workers.gather([*progress, error is not None]).tolist()
        owner = max(range(len(table)), key=lambda rank: (table[rank][:2], -rank))
        if table[owner][0] < 0:
            if any(damaged for _, _, damaged in table):
                raise _none_good(str(error or "see the other workers"), self._folder)
            return None
        data = self._workers.bytes_from(owner, found[0] if found else b"")
        return Backup.decoded(data, f"the backup of worker {owner}")

    def _restore(self, model, backup):
        facts = backup.facts
        epoch, batch = backup.progress
        training_state.check(model, backup.arrays, f"epoch-{epoch}-batch-{batch}.backup")
        self._assign(model, backup.arrays, training_state.SECTIONS)
        keras_seam.set_initial_epoch(model, epoch)
        self._order = DataOrder(facts["seed"], batch, facts["position"], facts["pass"])
        if batch:
            self._resumed = backup.arrays

    def _assign(self, model, arrays, sections):
        training_state.assign(model, self._workers, arrays, sections)

    def _restore_as_keras(self, model):
        """Goes on from the files of Keras's own callback, if they can be read."""
        if self._is_of_keras() and self._is_writer():
            warnings.warn(
                f"{self._folder} holds a backup of keras.callbacks.BackupAndRestore, whose two "
                "files may be of different moments. The next backup will be one file.",
                stacklevel=2,
            )
            callback = keras.callbacks.BackupAndRestore(str(self._folder))
            callback.set_model(model)
            callback.on_train_begin()
        if self._workers:
            self._workers.share_state(model)

    def _is_of_keras(self):
        return self._folder is not None and (self._folder / FILES_OF_KERAS[0]).exists()

    def _is_writer(self):
        return not self._workers or self._workers.rank == 0

    def _any(self, condition):
        return self._workers.any(condition) if self._workers else condition

    def _common(self, number):
        return int(self._workers.from_worker_0(np.array([number]))[0]) if self._workers else number


def _none_good(why, folder):
    return DamagedBackup(
        f"No backup can be read: {why}. Remove {folder} to start from the beginning, or restore "
        "one of its files."
    )


def _draw_seed(model):
    """Draws a seed for the order of arrays, reproducible from TensorFlow's global seed."""
    strategy = model.distribute_strategy
    if hasattr(strategy, "seeds"):
        return strategy.seeds.draw()
    own = tensorflow_seam.global_seed()
    return random.Random(None if own is None else int(own)).getrandbits(31)
