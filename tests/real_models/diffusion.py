"""A diffusion model of points on a ring: a noise schedule, and a slow copy of the network.

The network learns to say what noise was added to points. Drawing starts from noise alone and takes
it away in steps, with the copy, whose weights are an exponential moving average (EMA).
"""

import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_adasum

EMA = 0.98


def build_network():
    """Return a model that takes noisy points and the noise's variance, and returns the noise."""
    points, variance = keras.Input([2]), keras.Input([1])
    angles = layers.Rescaling(1.5)(variance)
    hidden = layers.Concatenate()([points, angles, keras.ops.sin(4 * angles)])
    for _ in range(3):
        hidden = layers.Dense(64, activation="swish")(hidden)
    return keras.Model([points, variance], layers.Dense(2)(hidden))


class Diffusion(keras.Model):
    """The network, its copy, and the scale of the data; it is trained and never called."""

    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = build_network()
        self.ema_network = keras.models.clone_model(self.network)
        self.ema_network.set_weights(self.network.get_weights())
        self.seeds = keras.random.SeedGenerator(3)
        self.noise_loss = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.noise_loss]

    def schedule(self, times):
        """The rates of signal and noise at times from 0 to 1; their squares sum to one."""
        angles = 0.05 + times * (np.pi / 2 - 0.1)
        return tf.cos(angles), tf.sin(angles)

    def loss_of(self, network, points, training):
        """How far the network is from the noise that was added at random times."""
        points = self.normalizer(points)
        noise = keras.random.normal(tf.shape(points), seed=self.seeds)
        times = keras.random.uniform([tf.shape(points)[0], 1], seed=self.seeds)
        signal_rate, noise_rate = self.schedule(times)
        noisy = signal_rate * points + noise_rate * noise
        return tf.reduce_mean(tf.square(network([noisy, noise_rate**2], training=training) - noise))

    def train_step(self, points):
        with tf.GradientTape() as tape:
            loss = self.loss_of(self.network, points, training=True)
        weights = self.network.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.noise_loss.update_state(loss)
        for weight, slow in zip(self.network.weights, self.ema_network.weights, strict=True):
            slow.assign(EMA * slow + (1 - EMA) * weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, points):
        self.noise_loss.update_state(self.loss_of(self.ema_network, points, training=False))
        return {metric.name: metric.result() for metric in self.metrics}

    def draw(self, noise, steps=20):
        """Return points: the noise is estimated, taken away, and a little less put back."""
        times = tf.linspace(1.0, 0.0, steps + 1)
        noisy = tf.constant(noise)
        for now, then in itertools.pairwise(times):
            signal_rate, noise_rate = self.schedule(now)
            noise = self.ema_network([noisy, tf.fill([len(noise), 1], noise_rate**2)])
            points = (noisy - noise_rate * noise) / signal_rate
            signal_rate, noise_rate = self.schedule(then)
            noisy = signal_rate * points + noise_rate * noise
        return points * self.normalizer.variance**0.5 + self.normalizer.mean


def main():
    """Train; return the model, the losses, and how far drawn points are from the ring."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    angles = random.uniform(0, 2 * np.pi, 3000)
    ring = np.stack([3 + 2 * np.cos(angles), 2 * np.sin(angles)], axis=1).astype("float32")
    noise = random.standard_normal([500, 2]).astype("float32")
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = Diffusion()
        model.normalizer.adapt(ring)
        model.compile(optimizer=keras.optimizers.AdamW(4e-3, weight_decay=1e-4))
    history = model.fit(
        ring[:2500], batch_size=50, epochs=12, validation_data=(ring[2500:],), verbose=2
    ).history
    drawn = np.asarray(model.draw(noise))
    radius = np.hypot(drawn[:, 0] - 3, drawn[:, 1])
    return model, {**history, "distance": np.abs(radius - 2).mean()}


if __name__ == "__main__":
    main()
