"""A GAN that draws handwritten digits: two networks, two optimizers, a training step of its own."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_adasum

NOISE = 16


class GAN(keras.Model):
    """A generator that learns to deceive a discriminator; it is trained and never called."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.generator = keras.Sequential(
            [
                keras.Input([NOISE]),
                layers.Dense(64, activation="relu"),
                layers.Dense(128, activation="relu"),
                layers.Dense(64, activation="sigmoid"),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input([64]),
                layers.Dense(128),
                layers.LeakyReLU(0.2),
                layers.Dropout(0.2),
                layers.Dense(1),
            ]
        )
        self.seeds = keras.random.SeedGenerator(1)
        self.generator_loss = keras.metrics.Mean(name="generator_loss")
        self.discriminator_loss = keras.metrics.Mean(name="discriminator_loss")

    def compile(self, generator_optimizer, discriminator_optimizer):
        """Take an optimizer for each of the networks."""
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
        self.cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        """What `fit` resets after each epoch."""
        return [self.generator_loss, self.discriminator_loss]

    def step(self, network, optimizer, loss_of):
        """Train one of the networks."""
        with tf.GradientTape() as tape:
            loss = loss_of()
        weights = network.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def train_step(self, real):
        """Train the discriminator to tell drawn from real images, then the generator against it."""
        rows = tf.shape(real)[0]
        drawn = self.generator(keras.random.normal([rows, NOISE], seed=self.seeds))
        labels = tf.concat([tf.ones([rows, 1]), tf.zeros([rows, 1])], axis=0)

        def discriminator_loss():
            logits = self.discriminator(tf.concat([real, drawn], axis=0), training=True)
            return self.cross_entropy(labels, logits)

        loss = self.step(self.discriminator, self.discriminator_optimizer, discriminator_loss)
        self.discriminator_loss.update_state(loss)
        noise = keras.random.normal([rows, NOISE], seed=self.seeds)

        def generator_loss():
            logits = self.discriminator(self.generator(noise, training=True))
            return self.cross_entropy(tf.ones([rows, 1]), logits)

        loss = self.step(self.generator, self.generator_optimizer, generator_loss)
        self.generator_loss.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def main():
    """Train; return the model, the losses, and how far drawn images are from real ones."""
    keras.utils.set_random_seed(0)
    images = (load_digits().data / 16).astype("float32")
    noise = np.random.default_rng(0).standard_normal([500, NOISE]).astype("float32")
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = GAN()
        model.compile(
            generator_optimizer=keras.optimizers.Adam(2e-3, beta_1=0.5),
            discriminator_optimizer=keras.optimizers.Adam(2e-3, beta_1=0.5),
        )

    def distance():
        """The difference of the mean images, per pixel."""
        drawn = model.generator.predict(noise, verbose=0)
        return np.abs(drawn.mean(axis=0) - images.mean(axis=0)).mean()

    distances = [distance()]
    history = model.fit(images, batch_size=32, epochs=10, verbose=2)
    distances.append(distance())
    return model, {**history.history, "distance": distances}


if __name__ == "__main__":
    main()
