"""Callbacks on several workers: every worker passes the same list to `fit`, only worker 0 writes.

This changes the list that `keras.callbacks.CallbackList` calls, if the model belongs to an
`AdasumMirroredStrategy` on more than one worker. (The ModelCheckpoint and BackupAndRestore of Keras
2 support several workers and are not changed.)

* `ModelCheckpoint`, `CSVLogger` and `TensorBoard`, and their subclasses, run on worker 0 only:
  several workers that write to one path destroy or lock each other's files. All replicas hold the
  same weights and get the same logs, so nothing is lost. The same holds for callbacks of trackers
  (W&B, MLflow, ...), for callbacks with the attribute `only_on_first_worker = True`, and inside
  `tf_adasum.callbacks.OnFirstWorker`. These callbacks cannot call methods that need all workers,
  such as `evaluate`: an error names the method (`first_worker`).
* `BackupAndRestore`, Keras's and ours, is replaced by the driver of backups. All workers take part,
  even without the callback; the callback of worker 0 decides when.
* Another subclass of Keras's `BackupAndRestore` runs on worker 0. After `on_train_begin` of all
  callbacks, worker 0 sends the restored state to the others: the epoch, and every variable of the
  model and the optimizer.
* Then all workers compare their weights, bit for bit, because a worker that restored or assigned
  other weights would continue with them. `strategy.check_model` names the first that differs.
* If one worker has set `model.stop_training` by the end of an epoch, all stop. A callback that
  sets it *within* an epoch must do so on all workers after the same batch: the others would wait
  for gradients that are never sent.

All other callbacks run on every worker, with the same logs: `EarlyStopping`, `ReduceLROnPlateau`,
`LearningRateScheduler` and `TerminateOnNaN` must, and do, decide the same on every worker.

The workers use collectives to agree. So in a custom loop as well, the `CallbackList` has to be
called on all workers. The lists may hold different callbacks: ``callbacks if rank == 0 else []``
works. But callbacks that change the training step, such as `OrthogonalityTracker`, must be on all
workers, and so must callbacks that wait for other workers. Those have an attribute
`same_on_all_workers`, a str with their settings, which is compared when training starts.

On one worker the list is not changed, unless our `BackupAndRestore` is in it.
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
    """Install the hooks into Keras, including the hook below; a second call does nothing."""
    keras_seam.install()


@keras_seam.hooks.replaces(keras.callbacks.CallbackList, "set_model")
def set_model(original, self, model):
    """Arrange the list: only worker 0 writes, all stop together, backups are taken last.

    This is done before callbacks get the model, because some of them write to their directory then.
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
        callbacks: the callbacks that the user passed on this worker.
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
    """Whether the driver of backups replaces a callback."""
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
    """The callback before the user's callbacks: it finds out whether worker 0 will restore.

    Args:
        workers: the `Workers`.
        callbacks: the user's callbacks that this worker calls.

    Attributes:
        waiting: list of str, the `same_on_all_workers` of callbacks that wait for other workers.
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
        """Check whether there is something to restore: after it is restored, nothing shows it."""
        found = any(tf.io.gfile.exists(callback.backup_dir) for callback in self._restoring)
        self.restores = self.workers.any(found)
        if self.restores:  # in a custom loop BackupAndRestore would, on worker 0 alone
            training_state.build_optimizer(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        """Log the epoch, so that a worker that has left the training is named."""
        call_log.epoch(epoch + 1)


class LastCallback(keras.callbacks.Callback):
    """The callback after the user's callbacks: shares restored state, compares, stops all together.

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
        """Stop all workers if one stops; check that all have the same learning rate."""
        rate = keras_seam.learning_rate_of(self.model)
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
