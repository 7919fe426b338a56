"""An endpoint layer: it takes the targets as an input, and adds the loss and a metric by itself.

The model is compiled without a loss, and trained on a dict of inputs and targets.
"""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import tf_adasum


class LogisticEndpoint(layers.Layer):
    """Probabilities from logits; where targets are given, their cross-entropy and accuracy."""

    def __init__(self, **options):
        super().__init__(**options)
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)

    def call(self, logits, targets=None, weights=None):
        if targets is not None:
            self.add_loss(self.loss(targets, logits, sample_weight=weights))
            self.accuracy.update_state(targets, logits, sample_weight=weights)
        return keras.ops.sigmoid(logits)


def make_data(images, targets, seed):
    """Return a dict with whether digits are even; every fifth label is wrong, and weighs little."""
    is_wrong = np.random.default_rng(seed).random(targets.shape) < 0.2
    return {
        "images": images,
        "targets": np.where(is_wrong, 1 - targets, targets),
        "weights": np.where(is_wrong, 0.05, 1.0).astype("float32"),
    }


def main():
    """Train; return the model, its history, and the accuracy of a model for use alone."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    pixels = (digits.data / 16).astype("float32")
    even = (digits.target[:, None] % 2 == 0).astype("float32")
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        images = keras.Input([64], name="images")
        targets = keras.Input([1], name="targets")
        weights = keras.Input([1], name="weights")
        logits = layers.Dense(1)(layers.Dense(32, activation="relu")(images))
        endpoint = LogisticEndpoint(name="endpoint")
        inputs = {"images": images, "targets": targets, "weights": weights}
        model = keras.Model(inputs, endpoint(logits, targets, weights))
        model.compile(optimizer=keras.optimizers.Adam(3e-3))
        for_use = keras.Model(images, endpoint(logits))
    history = model.fit(
        make_data(pixels[:1200], even[:1200], seed=1),
        batch_size=40,
        epochs=6,
        validation_data=make_data(pixels[1200:1500], even[1200:1500], seed=2),
        verbose=2,
    )
    predicted = for_use.predict(pixels[1500:], verbose=0) > 0.5
    accuracy = (predicted == even[1500:]).mean()
    return model, {**history.history, "test_accuracy": accuracy}


if __name__ == "__main__":
    main()
