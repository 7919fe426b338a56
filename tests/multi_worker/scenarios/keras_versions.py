"""One step on digits, from the same weights under Keras 3 and Keras 2."""

import keras
import numpy as np
from sklearn.datasets import load_digits

from scenarios.basics import scope, use_rule

ROWS = 64


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
