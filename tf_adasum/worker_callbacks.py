"""Callbacks on several workers: every worker passes the same list to `fit`, worker 0 alone writes.

`install()` wraps `keras.callbacks.CallbackList.set_model`. It does nothing unless the model belongs
to one of our strategies (it has `gradient_reduction`) on more than one worker. There:

* `ModelCheckpoint`, `CSVLogger`, `TensorBoard` and `BackupAndRestore`, and their subclasses, stay
  on worker 0 and are left out of the list on the others: several workers writing to one path
  destroy or lock each other's files. All replicas hold the same weights and get the same logs, so
  nothing is lost. (A subclass of these must not run collectives, such as `evaluate`, on its own.)
* What worker 0's `BackupAndRestore` restores reaches all workers: the epoch, and every variable of
  the model and the optimizer. Otherwise a worker on a machine without the backup would train on
  with other weights and no error. (It does so after all callbacks' `on_train_begin`.)
* Then all compare their weights, bit for bit: a worker that has restored or assigned others would
  train on with them, and no error. `strategy.check_model` names the first that differs.
* When one worker has set `model.stop_training` by the end of an epoch, all stop. A callback that
  sets it *within* an epoch must do so on all workers after the same batch: those that go on wait
  for the others' gradients, which no message at the end of the epoch can repair.

All other callbacks run on every worker, on the same logs: `EarlyStopping`, `ReduceLROnPlateau`,
`LearningRateScheduler` and `TerminateOnNaN` decide alike everywhere, and have to.

The workers agree in collectives: the `CallbackList` of a custom loop, too, has to be called on all
of them. Which callbacks a list holds may differ, though: ``callbacks if rank == 0 else []`` works.
Only those that change the training step, as `OrthogonalityTracker` does, have to be on all, and
those that wait for the other workers: they have an attribute `same_on_all_workers`, a str that says
what all must have, which is compared when training starts.
"""

import functools
import zlib

import keras
import numpy as np
import tensorflow as tf

from tf_adasum import cluster, keras_seam

CALLBACKS_OF_WORKER_0 = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
)

# A state travels in pieces of so many bytes, because every device holds a piece and a copy of it.
PIECE_BYTES = 64 * 2**20


def install():
    """Wraps `keras.callbacks.CallbackList.set_model`; again is harmless."""
    original = keras.callbacks.CallbackList.set_model
    if getattr(original, "knows_workers", False):
        return

    # `set_model`, because some callbacks write to their directory as soon as they get the model.
    @functools.wraps(original)
    def set_model(self, model):
        workers = Workers.of(model)
        if workers:
            self.callbacks = for_worker(workers, self.callbacks)
        original(self, model)

    set_model.knows_workers = True
    keras.callbacks.CallbackList.set_model = set_model


def for_worker(workers, callbacks):
    """Returns the list that this worker calls instead of `callbacks`."""
    if any(isinstance(callback, LastCallback) for callback in callbacks):
        return callbacks
    if workers.rank > 0:
        callbacks = [one for one in callbacks if not isinstance(one, CALLBACKS_OF_WORKER_0)]
    first = FirstCallback(workers, callbacks)
    return [first, *callbacks, LastCallback(workers, first)]


class FirstCallback(keras.callbacks.Callback):
    """Runs before all others: tells all workers whether worker 0 is going to restore a backup.

    Args:
        workers: the `Workers`.
        callbacks: those of this worker.
    """

    def __init__(self, workers, callbacks):
        super().__init__()
        self.workers = workers
        self.waiting = [
            callback.same_on_all_workers
            for callback in callbacks
            if hasattr(callback, "same_on_all_workers")
        ]
        self.backups = [
            callback
            for callback in callbacks
            if isinstance(callback, keras.callbacks.BackupAndRestore)
        ]
        self.restores = False

    def on_train_begin(self, logs=None):
        """Asks beforehand: once it is restored, a backup cannot be told from none."""
        found = any(tf.io.gfile.exists(callback.backup_dir) for callback in self.backups)
        self.restores = self.workers.any(found)
        optimizer = self.model.optimizer
        if self.restores and optimizer is not None and not optimizer.built:
            # `fit` has built it; in a custom loop BackupAndRestore would, on worker 0 alone.
            with self.workers.strategy.scope():
                optimizer.build(self.model.trainable_variables)


class LastCallback(keras.callbacks.Callback):
    """Runs after all others: shares what was restored and the decision to stop; compares weights.

    Args:
        workers: the `Workers`.
        first: the `FirstCallback` of the same list.
    """

    def __init__(self, workers, first):
        super().__init__()
        self.workers, self.first = workers, first

    def on_train_begin(self, logs=None):
        """Shares the restored state; checks that all start from the same."""
        if self.first.restores:
            share_state(self.workers, self.model)
        self.workers.check_same_callbacks(self.first.waiting)
        self.workers.strategy.check_model(self.model)

    def on_epoch_end(self, epoch, logs=None):
        """Stops on all workers what is stopped on one."""
        self.model.stop_training = self.workers.any(self.model.stop_training)


def share_state(workers, model):
    """Gives every worker worker 0's epoch, and its values of all variables.

    These are the model's, the optimizer's and those of the aggregation rule's state.
    A variable's value is that of its first local replica, which is also the one that is saved.
    """
    (epoch,) = workers.from_worker_0(np.array([keras_seam.initial_epoch(model)]))
    keras_seam.set_initial_epoch(model, int(epoch))
    variables = [*model.variables, *(model.optimizer.variables if model.optimizer else [])]
    reductions = keras_seam.reductions_of(model.optimizer)
    if reductions is not None and reductions.rule_state:
        variables += reductions.rule_state.of_name.values()
    values = [
        workers.strategy.experimental_local_results(variable.value)[0].numpy()
        for variable in variables
    ]
    # Bytes, not numbers: lossless for every dtype, bool and bfloat16 included, and for -0 and NaN.
    data = workers.bytes_from_worker_0(b"".join(value.tobytes() for value in values))
    position = 0
    for variable, value in zip(variables, values, strict=True):
        shared = np.frombuffer(data, value.dtype, value.size, position).reshape(value.shape)
        position += value.nbytes
        variable.assign(shared)


class Workers:
    """The workers of a strategy: this one's rank, and what they tell each other.

    Args:
        strategy: an `AdasumMirroredStrategy`.
        rank: this worker's; files are written on rank 0.
    """

    def __init__(self, strategy, rank):
        self.strategy, self.rank = strategy, rank

    @classmethod
    def of(cls, model):
        """Returns the `Workers` that train `model`; None where it is none of our business."""
        strategy = getattr(model, "distribute_strategy", None)
        if not hasattr(strategy, "gradient_reduction"):
            return None
        _, tasks = cluster.resolve(strategy.cluster_resolver)
        return cls(strategy, tasks.rank) if tasks and len(tasks.addresses) > 1 else None

    def any(self, condition):
        """Whether a condition holds on any worker; all have to call it."""
        return bool(self._sum(np.array([int(condition)])).any())

    def check_same_callbacks(self, names):
        """Checks that all workers have the same callbacks that wait for each other.

        Args:
            names: a str for each of this worker's.

        Raises:
            ValueError: on all workers, if they differ.
        """
        own = zlib.crc32(", ".join(names).encode())
        if self.any(own != int(self.from_worker_0(np.array([own]))[0])):
            raise ValueError(
                "Callbacks that wait for the other workers have to be passed on all workers, with "
                f"the same arguments. Received on this worker: {', '.join(names) or 'none'}"
            )

    def from_worker_0(self, integers):
        """Returns worker 0's integers `[n]`; all have to call it with equally many."""
        return self._sum(integers if self.rank == 0 else np.zeros_like(integers))

    def bytes_from_worker_0(self, data):
        """Returns worker 0's bytes; all have to call it with equally many."""
        padded = data.ljust(-(-len(data) // 8) * 8, b"\0")
        words = np.frombuffer(padded, np.int64)
        piece = PIECE_BYTES // words.itemsize
        received = [
            self.from_worker_0(words[start : start + piece])
            for start in range(0, len(words), piece)
        ]
        return b"".join(part.tobytes() for part in received)

    def _sum(self, integers):
        """Returns the sum of the workers' integers `[n]`, which int64 adds up exactly.

        Int64 is also the one integer type that collectives know on CPUs and GPUs and that GPUs
        hold in their own memory.
        """
        integers = integers.astype(np.int64)
        # This worker speaks through its first replica; the others have to take part.
        silent = [np.zeros_like(integers)] * (len(self.strategy.extended.worker_devices) - 1)
        per_replica = iter([integers, *silent])
        values = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(next(per_replica))
        )
        return self.strategy.reduce("SUM", values, axis=None).numpy()
