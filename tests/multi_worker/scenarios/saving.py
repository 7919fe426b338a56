"""What the worker processes do for `test_saving.py`: worker 0 saves, loads and copies alone."""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import random_data, read_as, weights_of
from scenarios.callbacks import compiled_model

FORMATS = {
    "model.keras": lambda model, path: model.save(path),
    "model.h5": lambda model, path: model.save(path),
    "model.weights.h5": lambda model, path: model.save_weights(path),
    "parts.weights.json": lambda model, path: model.save_weights(path, max_shard_size=1e-4),
    "exported": lambda model, path: model.export(path, verbose=False),
    "checkpoint": lambda model, path: tf.train.Checkpoint(model=model).write(path),
}


def save_on_all_workers(strategy, folder):
    """Save checkpoints on all workers, as a script for one process does, and restore the last."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([400]), keras.layers.Dense(400)])
        average = read_as("MEAN", 1.0)
        checkpoint = tf.train.Checkpoint(model=model, average=average)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    for number in range(10):
        manager.save(checkpoint_number=number)
        if strategy.rank == 0:  # worker 0 may save alone, as long as no variable is ON_READ
            tf.train.Checkpoint(model=model).write(f"{folder}/alone")
    before = model.get_weights()
    strategy._workers.gather([])
    strategy.run(lambda: average.assign(3.0))
    model.set_weights([0 * each for each in before])
    checkpoint.restore(manager.latest_checkpoint)
    equal = all((a == b).all() for a, b in zip(model.get_weights(), before, strict=True))
    average = float(strategy.reduce("MEAN", average, axis=None))
    return {"equal": equal, "average": average, "latest": manager.latest_checkpoint}


def save_in_scope(strategy, folder, within_fit):
    """Train in the scope, save there on worker 0 alone in every format, and train on."""
    # A test begins with `clear_session`, as a program that has not saved or loaded anything yet:
    # the first time Keras makes an optimizer.
    x, y = random_data(48)

    def save(*_):
        for name, save_as in FORMATS.items() if strategy.rank == 0 else ():
            save_as(model, f"{folder}/{name}")

    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{folder}/best.keras"),
        keras.callbacks.LambdaCallback(on_epoch_end=save),
    ]
    with strategy.scope():
        model = compiled_model(strategy, metrics=["mae"])
        callbacks = callbacks if within_fit else []
        model.fit(x, y, batch_size=24, epochs=2, verbose=0, callbacks=callbacks)
        saved = weights_of(model)
        if not within_fit:
            save()
        model.fit(x, y, batch_size=24, verbose=0)
    strategy.check_replicas()
    return saved


def copy_alone(strategy, folder):
    """Load, clone, compile, train and evaluate on worker 0 alone, outside of the scope."""
    x, y = random_data(48)
    model = compiled_model(strategy, metrics=["mae"])
    model.fit(x, y, batch_size=24, verbose=0)
    expected = model.evaluate(x, y, batch_size=24, verbose=0)
    losses = []
    if strategy.rank == 0:
        for name in ("model.keras", "model.h5", "model.weights.h5", "checkpoint"):
            FORMATS[name](model, f"{folder}/{name}")
        clone, reloaded = keras.models.clone_model(model), keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        reloaded.load_weights(f"{folder}/model.weights.h5")
        for copy in (clone, reloaded):
            copy.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
        for copy in (clone, reloaded, keras.models.load_model(f"{folder}/model.keras")):
            losses.append(copy.evaluate(x, y, batch_size=24, verbose=0))
            copy.fit(x, y, batch_size=24, verbose=0)
            copy.predict(x, verbose=0)
    model.fit(x, y, batch_size=24, verbose=0)
    strategy.check_replicas()
    return {"expected": expected, "losses": np.array(losses)}
