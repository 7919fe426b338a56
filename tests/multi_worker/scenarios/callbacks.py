"""What the worker processes do for `test_callbacks.py`: train with callbacks on every worker."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from support import stacks
from support.stacks import Variable, copies_of

from scenarios.basics import random_data
from tf_adasum import callbacks
from tf_adasum.backup import training_state
from tf_adasum.compat import keras as keras_compat
from tf_adasum.workers import workers

ROWS_PER_EPOCH = 48


def rank_of(strategy):
    return strategy.cluster_resolver.task_id or 0


def compiled_model(strategy, seed):
    """A model with weights, statistics and seeds, and an optimizer with a state."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([6]),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    return model


def fit(model, callbacks, epochs, validate=False):
    x, y = random_data(ROWS_PER_EPOCH)
    return model.fit(
        x,
        y,
        batch_size=24,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        validation_data=(x, y) if validate else None,
        callbacks=callbacks,
    )


def state_of(model):
    variables = [*model.variables, *keras_compat.all_variables(model.optimizer)]
    return {f"variable{number}": variable.numpy() for number, variable in enumerate(variables)}


def callbacks_that_write(folder):
    folder = pathlib.Path(folder)
    return [
        keras.callbacks.ModelCheckpoint(str(folder / "checkpoint" / "model.keras")),
        keras.callbacks.CSVLogger(str(folder / "log.csv"), append=True),
        keras.callbacks.TensorBoard(str(folder / "board")),
        keras.callbacks.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False),
        keras.callbacks.EarlyStopping(patience=100),
    ]


def train_with_files(strategy, folder, epochs):
    """Write to that folder; "{rank}" in it is this worker's."""
    folder = pathlib.Path(folder.format(rank=rank_of(strategy)))
    folder.mkdir(exist_ok=True)
    model = compiled_model(strategy, seed=1)
    fit(model, callbacks_that_write(folder), epochs, validate=True)
    return {f"weight{index}": weight for index, weight in enumerate(model.get_weights())}


def train_with_tensorboard(strategy, folder):
    """Return what `logs` had; "{rank}" in the folder is this worker's."""
    folder = pathlib.Path(folder.format(rank=rank_of(strategy)))
    folder.mkdir()
    model = compiled_model(strategy, seed=1)
    given = [
        callbacks.OrthogonalityTracker(),
        # Weights and moving statistics, too, which only worker 0 reads.
        keras.callbacks.TensorBoard(str(folder), histogram_freq=1, update_freq=1),
    ]
    history = fit(model, given, epochs=2, validate=True).history
    return {**history, "weights": [weight.name for weight in model.weights]}


class Alone(keras.callbacks.Callback):
    """Does on worker 0 alone what users may want there; it notes which of it was refused."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.refused, self.batches, self.predicted = folder, [], 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.model.stop_training = self.batches == 3  # the first batch of the second epoch

    def on_epoch_end(self, epoch, logs=None):
        x, y = random_data(8)
        self.model.save(f"{self.folder}/{epoch}.keras")
        np.savez(f"{self.folder}/{epoch}", *self.model.get_weights())
        self.predicted = self.model.predict(x, batch_size=3, verbose=0)
        for call in [
            lambda: self.model.evaluate(x, y, verbose=0),
            lambda: self.model.train_on_batch(x, y),
            lambda: self.model.metrics[0].result(),
            lambda: self.model.distribute_strategy.workers.any(True),
        ]:
            try:
                call()
            except RuntimeError as error:
                self.refused.append(str(error))


def do_alone(strategy, folder):
    """Train with `Alone`; return the epochs, what was refused, and the weights."""
    model, alone = compiled_model(strategy, seed=1), Alone(folder)
    history = fit(model, [callbacks.OnFirstWorker(alone)], epochs=4)
    weights = {f"weight{index}": weight for index, weight in enumerate(model.get_weights())}
    return {
        "epochs": history.epoch,
        "refused": alone.refused,
        "batches": alone.batches,
        "predicted": alone.predicted,
        "predicted together": model.predict(random_data(8)[0], verbose=0),
        **weights,
    }


class Evaluates(keras.callbacks.Callback):
    """Makes a call that takes all workers."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.evaluate(*random_data(ROWS_PER_EPOCH), batch_size=24, verbose=0)


def evaluate_alone(strategy):
    """A callback on worker 0 that calls `evaluate`; the other one has not got it."""
    given = [Evaluates()] if rank_of(strategy) == 0 else []
    try:
        fit(compiled_model(strategy, seed=1), given, epochs=3)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": ""}


def names_in_list(strategy, folder):
    """The classes that are called where the user passes `callbacks_that_write`."""
    given = callbacks_that_write(folder.format(rank=rank_of(strategy)))
    made = keras.callbacks.CallbackList(given, model=compiled_model(strategy, seed=1))
    # Again changes nothing more.
    made.set_model(made.model)
    users = [getattr(callback, "callback", callback) for callback in made.callbacks]
    return {"names": [type(callback).__name__ for callback in users]}


class StopOn(keras.callbacks.Callback):
    """Stops the training of one worker at the end of an epoch."""

    def __init__(self, stops, epoch):
        super().__init__()
        self.stops, self.epoch = stops, epoch

    def on_epoch_end(self, epoch, logs=None):
        if self.stops and epoch == self.epoch:
            self.model.stop_training = True


def train_until_stopped(strategy, early=False, rank=0, epoch=0):
    """Return how many epochs were trained."""
    stopping = StopOn(rank_of(strategy) == rank, epoch)
    if early:
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e6)
    history = fit(compiled_model(strategy, seed=2), [stopping], epochs=5)
    return {"epochs": history.epoch, "loss": history.history["loss"]}


def train_with_other_callbacks(strategy):
    """Callbacks that run on all workers, as they are."""
    model = compiled_model(strategy, seed=2)
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=1e6, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.ProgbarLogger(),
    ]
    history = fit(model, callbacks, epochs=3)
    return {"rate": history.history[stacks.LEARNING_RATE_IN_LOGS], **state_of(model)}


class Interrupted(Exception):
    """Stands for a machine that fails."""


class Interrupt(keras.callbacks.Callback):
    """Fails when an epoch begins."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Interrupted


def backups_of(strategy, folder, only_worker_0=False):
    if only_worker_0 and rank_of(strategy) > 0:
        return []
    return [keras.callbacks.BackupAndRestore(folder.format(rank=rank_of(strategy)))]


def interrupt_training(strategy, folder, **options):
    """Train two epochs of four; return the state at the end of the second."""
    model = compiled_model(strategy, seed=3)
    try:
        fit(model, [*backups_of(strategy, folder, **options), Interrupt(2)], epochs=4)
    except Interrupted:
        return state_of(model)
    raise AssertionError("not interrupted")


def train_unbroken(strategy):
    model = compiled_model(strategy, seed=3)
    fit(model, [], epochs=4)
    return state_of(model)


def train_interrupted(strategy, folder, **options):
    """The same training, interrupted, and continued by another model."""
    interrupt_training(strategy, folder, **options)
    model = compiled_model(strategy, seed=4)
    history = fit(model, backups_of(strategy, folder, **options), epochs=4)
    return {"epochs": history.epoch, **state_of(model)}


def restore_in_custom_loop(strategy, folder):
    """What a custom loop gets, in which nothing has built the optimizer before."""
    expected = interrupt_training(strategy, folder)
    model = compiled_model(strategy, seed=4)
    assert not model.optimizer.built
    callbacks = keras.callbacks.CallbackList(backups_of(strategy, folder), model=model)
    callbacks.on_train_begin()
    epoch = keras_compat.initial_epoch(model)
    callbacks.on_train_end()
    state = state_of(model)
    assert state.keys() == expected.keys()
    return {"epoch": epoch} | {
        f"equal {name}": (state[name] == expected[name]).all() for name in state
    }


def values_of(rank):
    """Of all dtypes that variables on several workers can have, and of odd sizes."""
    generator = np.random.default_rng(rank)
    bits = generator.integers(0, 256, 17 * 8, "uint8")
    return [
        bits.view("int32"),
        bits.view("int64")[:3],
        bits.view("float16")[:5],
        generator.standard_normal([2, 3, 1]),
        np.array([-0.0, np.nan, np.inf, rank], "float32"),
        generator.integers(0, 2, 7).astype(bool),
        np.array(rank + 1, "int32"),
    ]


class Holder:
    """What of a model `training_state.share` looks at."""

    optimizer = None

    def __init__(self, variables, strategy):
        self.variables, self.distribute_strategy = variables, strategy


def share_state(strategy, piece_bytes):
    """The bytes that every local replica holds, and the epoch."""
    rank = rank_of(strategy)
    with strategy.scope():
        variables = [
            Variable(np.zeros_like(value), dtype=tf.as_dtype(value.dtype).name)
            for value in values_of(0)
        ]
    for variable, value in zip(variables, values_of(rank), strict=True):
        variable.assign(value)
    model = Holder(variables, strategy)
    keras_compat.set_initial_epoch(model, 5 if rank == 0 else 0)
    usual, workers.PIECE_BYTES = workers.PIECE_BYTES, piece_bytes
    try:
        training_state.share(model, strategy.workers)
    finally:
        workers.PIECE_BYTES = usual
    held = {
        f"{number}.{local}": np.frombuffer(copy.numpy().tobytes(), "uint8")
        for number, variable in enumerate(variables)
        for local, copy in enumerate(copies_of(strategy, variable))
    }
    return {"epoch": keras_compat.initial_epoch(model), **held}
