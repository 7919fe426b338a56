"""Callbacks on several workers: every worker passes the same list to `fit`, worker 0 alone writes.

`install()` wraps `keras.callbacks.CallbackList.set_model`. It does nothing unless the model belongs
to one of our strategies (it has `gradient_reduction`) on more than one worker. There:

* `ModelCheckpoint`, `CSVLogger` and `TensorBoard`, and their subclasses, stay on worker 0 and are
  left out of the list on the others: several workers writing to one path destroy or lock each
  other's files. All replicas hold the same weights and get the same logs, so nothing is lost. (A
  subclass of these must not run collectives, such as `evaluate`, on its own.)
* `BackupAndRestore`, Keras's and ours, becomes a `TrainingBackup`, in which all workers take part,
  whether they have the callback or not; worker 0's says when. It restores before all other
  callbacks' `on_train_begin`, and saves after all their `on_train_batch_end` and `on_epoch_end`.
* Another subclass of Keras's `BackupAndRestore` stays on worker 0. What it restores reaches all
  workers: the epoch, and every variable of the model and the optimizer. (It does so after all
  callbacks' `on_train_begin`.)
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

from tf_adasum.backup.training_backup import TrainingBackup
from tf_adasum.cluster import resolver as cluster_resolvers
from tf_adasum.seams import keras as keras_seam

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
            self.callbacks = for_worker(workers, self.callbacks, self)
        original(self, model)

    set_model.knows_workers = True
    keras.callbacks.CallbackList.set_model = set_model


def for_worker(workers, callbacks, calling=None):
    """Returns the list that this worker calls instead of `callbacks`.

    Args:
        workers: the `Workers`.
        callbacks: what the user gave this worker.
        calling: the `keras.callbacks.CallbackList` that calls them.
    """
    if any(isinstance(callback, LastCallback) for callback in callbacks):
        return callbacks
    backups = [callback for callback in callbacks if is_backup(callback)]
    callbacks = [callback for callback in callbacks if not is_backup(callback)]
    if workers.rank > 0:
        callbacks = [
            one for one in callbacks if not isinstance(one, keras_seam.CALLBACKS_OF_WORKER_0)
        ]
    first = FirstCallback(workers, callbacks, backups, calling)
    return [first, *callbacks, LastCallback(workers, first)]


def is_backup(callback):
    """Whether a callback backs up and restores, and is not one that a user has changed."""
    is_keras_own = type(callback) is keras.callbacks.BackupAndRestore
    return keras_seam.BACKS_UP_ONE_WORKER and (is_keras_own or hasattr(callback, "of_workers"))


class FirstCallback(keras.callbacks.Callback):
    """Runs before all others: restores a backup, or tells whether worker 0 is going to do so.

    Args:
        workers: the `Workers`.
        callbacks: those of this worker.
        backups: those of this worker that become a `TrainingBackup`.
        calling: the `keras.callbacks.CallbackList`.

    Attributes:
        backup: the `TrainingBackup`, from the beginning of the training on; None without one.
        restores: whether worker 0 has a callback in its list that is going to restore.
    """

    def __init__(self, workers, callbacks, backups, calling):
        super().__init__()
        self.workers, self._backups, self._calling = workers, backups, calling
        self.waiting = [
            callback.same_on_all_workers
            for callback in callbacks
            if hasattr(callback, "same_on_all_workers")
        ]
        self._others = [
            callback
            for callback in callbacks
            if isinstance(callback, keras.callbacks.BackupAndRestore)
            and keras_seam.BACKS_UP_ONE_WORKER
        ]
        self.backup, self.restores = None, False

    def on_train_begin(self, logs=None):
        """Restores; and asks beforehand what, once restored, cannot be told from nothing."""
        self.backup = self._agreed_backup()
        if self.backup:
            self.backup.begin(self.model)
            if self.backup.saves_within_epochs and self._calling:
                keras_seam.call_in_order(self._calling)
        found = any(tf.io.gfile.exists(callback.backup_dir) for callback in self._others)
        self.restores = self.workers.any(found)
        optimizer = self.model.optimizer
        if self.restores and optimizer is not None and not keras_seam.is_built(optimizer):
            # `fit` has built it; in a custom loop BackupAndRestore would, on worker 0 alone.
            with self.workers.strategy.scope():
                keras_seam.build(optimizer, self.model.trainable_variables)

    def _agreed_backup(self):
        """Returns this worker's part in worker 0's backups; None where that has none."""
        own = [TrainingBackup.like(callback, self.workers) for callback in self._backups]
        frequency = {"epoch": 0, False: -1}.get(own[0].save_freq, own[0].save_freq) if own else 0
        count, frequency = self.workers.from_worker_0(np.array([len(own), frequency])).tolist()
        if count > 1:
            raise ValueError(
                f"`callbacks` may have one BackupAndRestore. Received: {count} of them on worker 0"
            )
        if count == 0:
            return None
        backup = own[0] if own else TrainingBackup(None, None, 1, True, self.workers)
        backup.save_freq = {0: "epoch", -1: False}.get(frequency, frequency)
        return backup

    def on_epoch_begin(self, epoch, logs=None):
        """Restores the metrics of an epoch that was interrupted."""
        if self.backup:
            self.backup.begin_epoch(self.model, epoch)


class LastCallback(keras.callbacks.Callback):
    """Runs after all others: shares what was restored and the decision to stop; compares, saves.

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

    def on_epoch_begin(self, epoch, logs=None):
        """Restores what the others have changed in an epoch that was interrupted."""
        if self.first.backup:
            self.first.backup.begin_batches(self.model)

    def on_train_batch_end(self, batch, logs=None):
        """Saves."""
        if self.first.backup:
            self.first.backup.end_batch(self.model, batch)

    def on_epoch_end(self, epoch, logs=None):
        """Stops on all workers what is stopped on one; saves."""
        self.model.stop_training = self.workers.any(self.model.stop_training)
        if self.first.backup:
            self.first.backup.end_epoch(self.model, epoch)

    def on_train_end(self, logs=None):
        """Removes the backups."""
        if self.first.backup:
            self.first.backup.end(self.model)


def share_state(workers, model):
    """Gives every worker worker 0's epoch, and its values of all variables.

    These are the model's, the optimizer's and those of the aggregation rule's state.
    A variable's value is that of its first local replica, which is also the one that is saved.
    """
    (epoch,) = workers.from_worker_0(np.array([keras_seam.initial_epoch(model)]))
    keras_seam.set_initial_epoch(model, int(epoch))
    variables = [
        *model.variables,
        *(keras_seam.all_variables(model.optimizer) if model.optimizer else []),
    ]
    reductions = keras_seam.reductions_of(model.optimizer)
    if reductions is not None and reductions.rule_state:
        variables += reductions.rule_state.of_name.values()
    values = [
        workers.strategy.experimental_local_results(keras_seam.tensorflow_variable(variable))[
            0
        ].numpy()
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
        devices = len(strategy.extended.worker_devices)
        self.count = strategy.num_replicas_in_sync // devices

    @classmethod
    def of(cls, model):
        """Returns the `Workers` that train `model`; None where it is none of our business."""
        strategy = getattr(model, "distribute_strategy", None)
        if not hasattr(strategy, "gradient_reduction"):
            return None
        _, tasks = cluster_resolvers.resolve(strategy.cluster_resolver)
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

    def share_state(self, model):
        """Gives every worker worker 0's epoch and variables: `share_state`."""
        share_state(self, model)

    def from_worker_0(self, integers):
        """Returns worker 0's integers `[n]`; all have to call it with equally many."""
        return self._sum(integers if self.rank == 0 else np.zeros_like(integers))

    def bytes_from_worker_0(self, data):
        """Returns worker 0's bytes; all have to call it with equally many."""
        return self._bytes_from(0, data, len(data))

    def bytes_from(self, rank, data):
        """Returns the bytes of the worker of that rank; the others' do not matter."""
        return self._bytes_from(rank, data, int(self.gather([len(data)])[rank, 0]))

    def _bytes_from(self, rank, data, size):
        if self.rank != rank:
            data = bytes(size)
        received = [self._sum(words) for words in _pieces(data, PIECE_BYTES)]
        return b"".join(part.tobytes() for part in received)[:size]

    def gather(self, integers):
        """Returns the integers ``[k]`` of all workers, ``[workers, k]``."""
        table = np.zeros([self.count, len(integers)], np.int64)
        table[self.rank] = integers
        return self._sum(table.ravel()).reshape(table.shape)

    def gather_bytes(self, data):
        """Returns the bytes of all workers, as a list; all have to call it with equally many."""
        return [self._bytes_from(rank, data, len(data)) for rank in range(self.count)]

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


def _pieces(data, piece_bytes):
    """Yields bytes as arrays of int64, padded with zeros, a piece at a time."""
    words = max(1, piece_bytes // 8)
    for start in range(0, len(data), 8 * words):
        piece = data[start : start + 8 * words]
        yield np.frombuffer(piece.ljust(-(-len(piece) // 8) * 8, b"\0"), np.int64)
