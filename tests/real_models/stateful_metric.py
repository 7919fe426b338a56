"""Metrics with a state of their own, a count and a confusion matrix, which is what they return."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

import tf_adasum

CLASSES = 10


class Correct(keras.metrics.Metric):
    """How many rows were classified correctly."""

    def __init__(self, name="correct", **options):
        super().__init__(name=name, **options)
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        found = ops.equal(ops.reshape(y_true, [-1]), ops.argmax(y_pred, axis=-1))
        self.count.assign_add(ops.sum(ops.cast(found, self.dtype)))

    def result(self):
        return self.count


class ConfusionMatrix(keras.metrics.Metric):
    """How many rows of each class were taken for which class: `[true, predicted]`."""

    def __init__(self, classes, name="confusion", **options):
        super().__init__(name=name, **options)
        self.classes = classes
        self.matrix = self.add_variable(
            shape=(classes, classes), initializer="zeros", name="matrix"
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        true = ops.one_hot(ops.reshape(y_true, [-1]), self.classes)
        predicted = ops.one_hot(ops.argmax(y_pred, axis=-1), self.classes)
        self.matrix.assign_add(ops.matmul(ops.transpose(true), predicted))

    def result(self):
        return self.matrix


def main():
    """Train; return the model, its history, and what was counted on the test images."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images, labels = (digits.data / 16).astype("float32"), digits.target
    train, test = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([64]),
                layers.Dense(32, activation="relu"),
                layers.Dense(CLASSES, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(3e-3),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy", Correct(), ConfusionMatrix(CLASSES)],
        )
    history = model.fit(*train, batch_size=50, epochs=6, verbose=2)
    counted = model.evaluate(*test, batch_size=50, return_dict=True, verbose=0)
    predicted = model.predict(test[0], verbose=0).argmax(axis=1)
    return model, {
        "loss": history.history["loss"],
        "correct_in_training": history.history["correct"],
        "accuracy_in_training": history.history["accuracy"],
        "accuracy": counted["accuracy"],
        "correct": counted["correct"],
        "confusion": np.asarray(counted["confusion"]),
        "true": test[1],
        "predicted": predicted,
    }


if __name__ == "__main__":
    main()
