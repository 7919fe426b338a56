"""Callbacks on several workers: every worker passes the same list to `fit`, worker 0 alone writes.

This changes the list that `keras.callbacks.CallbackList` calls, if the model belongs to an
`AdasumMirroredStrategy` on more than one worker. (The ModelCheckpoint and BackupAndRestore of Keras
2 know several workers: there these two are left alone.)

* `ModelCheckpoint`, `CSVLogger` and `TensorBoard`, and their subclasses, stay on worker 0 and are
  left out on the others: several workers that write to one path destroy or lock each other's files.
  All replicas hold the same weights and get the same logs, so nothing is lost. So it is with the
  callbacks of trackers (W&B, MLflow, ...), with those that have an attribute
  `only_on_first_worker`, True, and with what is in `tf_adasum.callbacks.OnFirstWorker`. What takes
  all workers, such as `evaluate`, they cannot call: an error says so (`first_worker`).
* `BackupAndRestore`, Keras's and ours, is replaced by the driver of backups. All workers take part,
  whether they have the callback or not; worker 0's says when.
* Another subclass of Keras's `BackupAndRestore` stays on worker 0. After all callbacks'
  `on_train_begin`, worker 0 sends what it restored to the others: the epoch, and every variable of
  the model and the optimizer.
* Then all compare their weights, bit for bit: without this a worker that has restored or assigned
  other ones would train on with them. `strategy.check_model` names the first that differs.
* When one worker has set `model.stop_training` by the end of an epoch, all stop. A callback that
  sets it *within* an epoch must do so on all workers after the same batch: the others would wait
  for gradients that do not come.

All other callbacks run on every worker, on the same logs: `EarlyStopping`, `ReduceLROnPlateau`,
`LearningRateScheduler` and `TerminateOnNaN` decide alike everywhere, and have to.

The workers agree in collectives: the `CallbackList` of a custom loop, too, has to be called on all
of them. Which callbacks a list holds may differ: ``callbacks if rank == 0 else []`` works.
Callbacks that change the training step, as `OrthogonalityTracker` does, must be on all workers, as
must those that wait for other workers. The latter have an attribute `same_on_all_workers`, a str
with what all must have, which is compared when training starts.

On one worker the list stays as it is, unless our `BackupAndRestore` is in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.backup import driver, training_state
from tf_adasum.errors import see
from tf_adasum.seams import keras as keras_seam
from tf_adasum.watch import call_log, status_file
from tf_adasum.workers.first_worker import FirstWorkerOnly, is_for_first_worker
from tf_adasum.workers.workers import Workers


def install() -> None:
    """Install the hooks into Keras, the one below among them; a second call does nothing."""
    keras_seam.install()


@keras_seam.hooks.replaces(keras.callbacks.CallbackList, "set_model")
def set_model(original, self, model):
    """Arrange the list: worker 0 alone writes, all stop together, backups are taken last.

    It comes before callbacks get the model, when some of them write to their directory already.
    """
    if model is not None:
        self.callbacks = arranged(self.callbacks, model, self)
    return original(self, model)


def arranged(
    callbacks: Sequence[keras.callbacks.Callback],
    model: keras.Model,
    calling: keras.callbacks.CallbackList,
) -> list[keras.callbacks.Callback]:
    """Return the list that this worker calls instead of `callbacks`.

    Args:
        callbacks: what the user gave this worker.
        model: the model that is trained.
        calling: the list that calls them.
    """
    if any(isinstance(callback, driver.RestoreFirst) for callback in callbacks):
        return list(callbacks)  # arranged already
    if status_file.is_wanted() and not any(isinstance(one, StepsOfStatus) for one in callbacks):
        callbacks = [*callbacks, StepsOfStatus()]
    workers = Workers.of_model(model)
    backups = [one for one in callbacks if _is_driven(one, workers)]
    if workers.count == 1 and not backups:
        return list(callbacks)
    others = [one for one in callbacks if not _is_driven(one, workers)]
    if workers.rank > 0:
        others = [one for one in others if not is_for_first_worker(one)]
    if workers.count > 1:
        first = FirstCallback(workers, others)
        others = [FirstWorkerOnly.around(one) for one in others]
        others = [first, *others, LastCallback(workers, first)]
    restore = driver.RestoreFirst(workers, backups, calling)
    return [restore, *others, driver.SaveLast(restore)]


def _is_driven(callback, workers):
    """Whether the driver of backups takes the place of a callback."""
    if isinstance(callback, driver.BackupArguments):
        return True
    is_keras_own = type(callback) is keras.callbacks.BackupAndRestore  # and none of a user's
    return keras_seam.BACKS_UP_ONE_WORKER and is_keras_own and workers.count > 1


class StepsOfStatus(keras.callbacks.Callback):
    """The callback that counts the steps of a training for the launcher's `--status`."""

    def on_train_begin(self, logs=None):
        """Begin to count."""
        self._step = self._before_epoch = 0
        status_file.set_step(0)

    def on_epoch_begin(self, epoch, logs=None):
        """Take batches to be numbered from 0 again."""
        self._before_epoch = self._step

    def on_train_batch_end(self, batch, logs=None):
        """Count up to the end of a batch."""
        self._step = self._before_epoch + batch + 1
        status_file.set_step(self._step)


class FirstCallback(keras.callbacks.Callback):
    """The callback before the user's: it asks whether worker 0 is going to restore.

    Args:
        workers: the `Workers`.
        callbacks: those of the user's that this worker calls.

    Attributes:
        waiting: list of str, what those say that wait for other workers.
        restores: whether worker 0 has a callback in its list that is going to restore.
    """

    def __init__(self, workers, callbacks):
        super().__init__()
        self.workers, self.restores = workers, False
        waiting = (getattr(callback, "same_on_all_workers", None) for callback in callbacks)
        self.waiting = [said for said in waiting if said is not None]
        self._restoring = [
            callback
            for callback in callbacks
            if isinstance(callback, keras.callbacks.BackupAndRestore)
            and keras_seam.BACKS_UP_ONE_WORKER
        ]

    def on_train_begin(self, logs=None):
        """Ask whether there is something to restore: once it is restored, one cannot tell."""
        found = any(tf.io.gfile.exists(callback.backup_dir) for callback in self._restoring)
        self.restores = self.workers.any(found)
        if self.restores:  # in a custom loop BackupAndRestore would, on worker 0 alone
            training_state.build_optimizer(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        """Log the epoch, so that a worker that has left the training is named."""
        call_log.epoch(epoch + 1)


class LastCallback(keras.callbacks.Callback):
    """The callback after the user's: it shares what was restored, compares, stops all together.

    Args:
        workers: the `Workers`.
        first: the `FirstCallback` of the same list.
    """

    def __init__(self, workers, first):
        super().__init__()
        self.workers, self.first = workers, first

    def on_train_begin(self, logs=None):
        """Share the restored state; check that all start from the same."""
        if self.first.restores:
            training_state.share(self.model, self.workers)
        self.workers.check_same(
            "Callbacks that wait for the other workers have to be passed on all workers, with the "
            "same arguments.",
            ", ".join(self.first.waiting) or "none",
            code="TFA-510",
        )
        self.model.distribute_strategy.check_model(self.model)

    def on_epoch_end(self, epoch, logs=None):
        """Stop on all workers what is stopped on one; check that all have one learning rate."""
        rate = keras_seam.learning_rate_of(self.model)
        table = self.workers.gather([self.model.stop_training, *np.array([rate]).view(np.int64)])
        self.model.stop_training = bool(table[:, 0].any())
        if (table[:, 1] != table[0, 1]).any():
            rates = enumerate(table[:, 1].copy().view(np.float64))
            received = ", ".join(f"worker {rank}: {own:.7g}" for rank, own in rates)
            raise ValueError(
                f"After epoch {epoch + 1} the workers have different learning rates: {received}. "
                "Set the same one on all workers, in a callback that runs on all of them. "
                f"{see('TFA-511')}"
            )
