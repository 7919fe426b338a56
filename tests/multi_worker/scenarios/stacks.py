"""What has to come out alike in both stacks: one step on digits, from the same weights."""

import functools

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from scenarios.basics import scope, use_rule
from scenarios.callbacks import rank_of

ROWS = 64

# Of `normalizing_model`.
WEIGHTS = 6


def combined_gradients(strategy, rule):
    """Return how far one step of SGD with learning rate 1 moves each weight.

    Weights, rows and their order come from NumPy; Keras 2 and 3 draw different initial values from
    one seed.
    """
    use_rule(strategy, rule)
    random = np.random.default_rng(5)
    images, labels = load_digits(return_X_y=True)
    chosen = random.permutation(len(labels))[:ROWS]
    x, y = (images[chosen] / 16).astype("float32"), labels[chosen]
    with scope(strategy):
        model = keras.Sequential(
            [
                keras.layers.Input([64]),
                keras.layers.Dense(24, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss=loss)
    start = [
        random.standard_normal(weight.shape).astype("float32") / 8 for weight in model.get_weights()
    ]
    model.set_weights(start)
    model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    pairs = zip(start, model.get_weights(), strict=True)
    return {f"gradient{index}": before - after for index, (before, after) in enumerate(pairs)}


def normalizing_model(strategy):
    with scope(strategy):
        model = keras.Sequential(
            [
                keras.layers.Input([5]),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer=keras.optimizers.Adam(), loss="mse", metrics=["mae"])
    return model


def save_alone(strategy, folder):
    """Worker 0 saves in all ways, and loads; then all train again.

    Returns:
        On worker 0 the weights that it had, and those of each file; on all, those in the end.
    """
    x = np.random.default_rng(0).standard_normal([ROWS, 5]).astype("float32")
    model = normalizing_model(strategy)
    fit = functools.partial(model.fit, x, x[:, :1], batch_size=ROWS, verbose=0)
    fit()
    weights = {}
    if rank_of(strategy) == 0:
        weights["weights"] = model.get_weights()
        for ending in (".keras", ".h5"):
            path = f"{folder}/model{ending}"
            model.save(path)
            weights[ending] = keras.models.load_model(path, compile=False).get_weights()
        model.save_weights(f"{folder}/model.weights.h5")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        prefix = tf.train.CheckpointManager(checkpoint, folder, 1).save()
        for kind, load in {
            ".weights.h5": lambda new: new.load_weights(f"{folder}/model.weights.h5"),
            "checkpoint": lambda new: tf.train.Checkpoint(model=new).restore(prefix),
        }.items():
            new = normalizing_model(None)
            load(new)
            weights[kind] = new.get_weights()
    fit()  # no worker has fallen behind the others
    weights["end"] = model.get_weights()
    return {f"{kind} {i}": value for kind, own in weights.items() for i, value in enumerate(own)}
