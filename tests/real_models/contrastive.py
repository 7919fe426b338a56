"""Contrastive learning, as in SimCLR: an encoder learns from pairs of views, without labels.

A linear probe on top of it is trained beside it, and shows how much the encoder has found out. Its
loss is the one that the model is compiled with.
"""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import tf_adasum

TEMPERATURE = 0.2


class Contrastive(keras.Model):
    """An encoder, the head of the contrastive loss, and the probe."""

    def __init__(self):
        super().__init__()
        self.augment = keras.Sequential(
            [
                layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),
                layers.RandomRotation(0.04, fill_mode="constant"),
                layers.GaussianNoise(0.05),
            ]
        )
        self.encoder = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                layers.Conv2D(16, 3, activation="relu"),
                layers.Conv2D(32, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
            ]
        )
        self.head = keras.Sequential([keras.Input([64]), layers.Dense(32)])
        self.probe = keras.Sequential([keras.Input([64]), layers.Dense(10)])
        self.contrast = keras.metrics.Mean(name="contrast")

    @property
    def metrics(self):
        return [*super().metrics, self.contrast]

    def contrastive_loss(self, first, second):
        """The cross-entropy of finding an image's other view among those of all images."""
        first, second = tf.nn.l2_normalize(first, axis=1), tf.nn.l2_normalize(second, axis=1)
        similarities = tf.matmul(first, second, transpose_b=True) / TEMPERATURE
        own = tf.range(tf.shape(first)[0])
        losses = [
            keras.losses.sparse_categorical_crossentropy(own, each, from_logits=True)
            for each in (similarities, tf.transpose(similarities))
        ]
        return tf.reduce_mean(losses)

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            features = [self.encoder(self.augment(images, training=True)) for _ in range(2)]
            contrast = self.contrastive_loss(*map(self.head, features))
            logits = self.probe(tf.stop_gradient(features[0]))
            loss = contrast + self.compute_loss(images, labels, logits)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.measure(loss, contrast, labels, logits)

    def measure(self, loss, contrast, labels, logits):
        for metric in self.metrics:
            own = {"loss": [loss], "contrast": [contrast]}.get(metric.name, [labels, logits])
            metric.update_state(*own)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        images, labels = data
        logits = self.probe(self.encoder(images))
        views = [self.head(self.encoder(self.augment(images, training=True))) for _ in range(2)]
        loss = self.compute_loss(images, labels, logits)
        return self.measure(loss, self.contrastive_loss(*views), labels, logits)


def main():
    """Train; return the model and its history."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    train = images[:1500], digits.target[:1500]
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = Contrastive()
        model.compile(
            optimizer=keras.optimizers.Adam(3e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(*train, batch_size=60, epochs=8, verbose=2)
    test = tf.data.Dataset.from_tensor_slices((images[1500:], digits.target[1500:]))
    # Images are told from the others of a batch, so that it has to have some.
    results = model.evaluate(test.batch(60, drop_remainder=True), return_dict=True, verbose=0)
    return model, {**history.history, "test_accuracy": results["accuracy"]}


if __name__ == "__main__":
    main()
