"""What the worker processes do for `test_callbacks.py`: train with callbacks on every worker."""

import pathlib

import keras

from scenarios.basics import compiled, random_data, weights_of
from tf_adasum import callbacks

ROWS_PER_EPOCH = 48


def compiled_model(strategy, seed=1, optimizer=lambda: keras.optimizers.Adam(0.01), **options):
    """A model with weights, statistics and seeds, and an optimizer with a state."""

    def make():
        layers = [keras.layers.Input([6]), keras.layers.Dense(8, activation="tanh")]
        layers += [keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.3)]
        return [*layers, keras.layers.Dense(1)]

    return compiled(strategy, make, optimizer, seed=seed, **options)


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


def train_with_files(strategy, folder):
    """Write to that folder; "{rank}" in it is this worker's. Return the logs and the weights."""
    folder = pathlib.Path(folder.format(rank=strategy.rank))
    folder.mkdir()
    model = compiled_model(strategy, seed=1)
    given = [
        callbacks.OrthogonalityTracker(),
        keras.callbacks.ModelCheckpoint(f"{folder}/checkpoint/model.keras"),
        keras.callbacks.CSVLogger(f"{folder}/log.csv", append=True),
        # Weights and moving statistics, too, which only worker 0 reads.
        keras.callbacks.TensorBoard(f"{folder}/board", histogram_freq=1, update_freq=1),
        keras.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False),
    ]
    history = fit(model, given, epochs=2, validate=True).history
    return {**history, **weights_of(model)}


def train_until_stopped(strategy, rank=None):
    """Train until a worker stops in the second epoch; None: EarlyStopping does, on all."""
    stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=1e6)
    if rank is not None:
        stopping = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stop(epoch))
    model = compiled_model(strategy, seed=2)

    def stop(epoch):
        model.stop_training = epoch == 1 and strategy.rank == rank

    history = fit(model, [stopping], epochs=5)
    return {"epochs": history.epoch, "loss": history.history["loss"]}


class Interrupted(Exception):
    """Stands for a machine that fails."""
