"""Transfer learning: a network that knows the digits 0 to 4 learns the digits 5 to 9.

It is trained on the first ones and saved. A new model takes its layers from the file, learns with
them frozen, then all of it is trained with a low learning rate.
"""

import pathlib

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import tf_adasum


def digits(first, last):
    """Return images and labels, from 0, of some of the digits: of most for training, of 150."""
    data = load_digits()
    chosen = (first <= data.target) & (data.target <= last)
    images = (data.images[chosen][..., None] / 16).astype("float32")
    labels = data.target[chosen] - first
    return (images[:-150], labels[:-150]), (images[-150:], labels[-150:])


def train(model, learning_rate, data, validation_data, epochs, callbacks=()):
    """Compile, which also takes note of what is frozen, and fit; return the history."""
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model.fit(
        *data,
        batch_size=32,
        epochs=epochs,
        validation_data=validation_data,
        callbacks=list(callbacks),
        verbose=2,
    ).history


def main(folder):
    """Train three times; return the model, the histories, and how far the base has moved."""
    keras.utils.set_random_seed(0)
    file = pathlib.Path(folder) / "base.keras"
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        base = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                layers.Conv2D(16, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.MaxPooling2D(),
                layers.Conv2D(32, 3, activation="relu"),
                layers.Flatten(),
            ],
            name="base",
        )
        source = keras.Sequential([base, layers.Dense(5, activation="softmax")])
        best = keras.callbacks.ModelCheckpoint(file, save_best_only=True)
        train(source, 3e-3, *digits(0, 4), epochs=3, callbacks=[best])

        base = keras.models.load_model(file).get_layer("base")
        base.trainable = False
        inputs = keras.Input([8, 8, 1])
        # Its statistics stay as they are, also when it is trained.
        features = layers.Dropout(0.2)(base(inputs, training=False))
        model = keras.Model(inputs, layers.Dense(5, activation="softmax")(features))
        weights = [np.array(each) for each in base.get_weights()]

        def moved():
            pairs = zip(base.get_weights(), weights, strict=True)
            return max(np.abs(now - before).max() for now, before in pairs)

        frozen = train(model, 3e-3, *digits(5, 9), epochs=4)
        moved_frozen = moved()
        base.trainable = True
        tuned = train(model, 1e-3, *digits(5, 9), epochs=4)
    return model, {
        "loss": frozen["loss"] + tuned["loss"],
        "frozen_accuracy": frozen["val_accuracy"][-1],
        "tuned_accuracy": tuned["val_accuracy"][-1],
        "moved_frozen": moved_frozen,
        "moved_tuned": moved(),
    }


if __name__ == "__main__":
    main(folder=".")
