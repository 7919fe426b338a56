"""Distillation: a small network learns from the answers of a large one that was trained before.

A metric with a state of its own counts which digits are taken for which.
"""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

import tf_adasum


class Distiller(keras.Model):
    """A student whose loss also compares it with its teacher.

    Args:
        student: the model that is trained; its outputs are logits.
        teacher: the model that it learns from.
        alpha: weight of the labels; that of the teacher is 1 - alpha.
        temperature: by which logits are divided, so that small probabilities count, too.
    """

    def __init__(self, student, teacher, alpha=0.1, temperature=4.0):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False
        self.alpha, self.temperature = alpha, temperature
        self.divergence = keras.losses.KLDivergence()

    def call(self, images, training=None):
        return self.student(images, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Add the distance from the teacher's answers to the compiled loss."""
        labels = super().compute_loss(x, y, y_pred, sample_weight, training)
        answers = keras.ops.softmax(self.teacher(x, training=False) / self.temperature)
        distance = self.divergence(answers, keras.ops.softmax(y_pred / self.temperature))
        return self.alpha * labels + (1 - self.alpha) * distance * self.temperature**2


class ConfusionMatrix(keras.metrics.Metric):
    """How many images of each digit were taken for which digit: `[true, predicted]`."""

    def __init__(self):
        super().__init__(name="confusion")
        self.matrix = self.add_variable(shape=(10, 10), initializer="zeros", name="matrix")

    def update_state(self, y_true, y_pred, sample_weight=None):
        true = ops.one_hot(ops.reshape(y_true, [-1]), 10)
        predicted = ops.one_hot(ops.argmax(y_pred, axis=-1), 10)
        self.matrix.assign_add(ops.matmul(ops.transpose(true), predicted))

    def result(self):
        return self.matrix


def classifier(filters, name):
    """Return a CNN of two convolutions."""
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.Conv2D(2 * filters, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ],
        name=name,
    )


def settings():
    """Return arguments of `compile`: an optimizer of its own for each model."""
    return {
        "optimizer": keras.optimizers.Adam(3e-3),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy"), ConfusionMatrix()],
    }


def main():
    """Train teacher and student; return the distiller, and what was measured of both."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    train, test = (images[:1500], digits.target[:1500]), (images[1500:], digits.target[1500:])
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        teacher = classifier(16, "teacher")
        teacher.compile(**settings())
    teacher.fit(*train, batch_size=32, epochs=4, verbose=2)
    with strategy.scope():
        distiller = Distiller(classifier(3, "student"), teacher)
        distiller.compile(**settings())
    history = distiller.fit(*train, batch_size=32, epochs=5, verbose=2)
    counted = distiller.evaluate(*test, return_dict=True, verbose=0)
    return distiller, {
        **history.history,
        "teacher_accuracy": teacher.evaluate(*test, verbose=0)[1],
        "student_accuracy": counted["accuracy"],
        "test_confusion": np.asarray(counted["confusion"]),
        "true": test[1],
        "predicted": distiller.predict(test[0], verbose=0).argmax(axis=1),
    }


if __name__ == "__main__":
    main()
