"""A variational autoencoder of handwritten digits: a loss of two parts, each with a tracker."""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import tf_adasum

LATENT = 4


class Sampling(layers.Layer):
    """Draw a code from the normal distribution that the encoder describes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, moments):
        mean, log_variance = moments
        noise = keras.random.normal(tf.shape(mean), seed=self.seeds)
        return mean + tf.exp(log_variance / 2) * noise


class VAE(keras.Model):
    """An encoder and a decoder that are trained together; the model itself is never called."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction = keras.metrics.Mean(name="reconstruction")
        self.divergence = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self):
        return [self.total, self.reconstruction, self.divergence]

    def losses_of(self, images, training):
        """The two parts of the loss, each summed over pixels or codes and averaged over rows."""
        mean, log_variance, code = self.encoder(images, training=training)
        drawn = self.decoder(code, training=training)
        pixels = keras.losses.binary_crossentropy(images[..., None], drawn[..., None])
        reconstruction = tf.reduce_mean(tf.reduce_sum(pixels, axis=1))
        terms = 1 + log_variance - tf.square(mean) - tf.exp(log_variance)
        divergence = tf.reduce_mean(-0.5 * tf.reduce_sum(terms, axis=1))
        return reconstruction, divergence

    def track(self, reconstruction, divergence):
        self.total.update_state(reconstruction + divergence)
        self.reconstruction.update_state(reconstruction)
        self.divergence.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, images):
        with tf.GradientTape() as tape:
            parts = self.losses_of(images, training=True)
            loss = sum(parts)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.track(*parts)

    def test_step(self, images):
        return self.track(*self.losses_of(images, training=False))


def build_vae():
    """Return the model, of a functional encoder and decoder."""
    images = keras.Input([64])
    hidden = layers.Dense(64, activation="relu")(images)
    mean = layers.Dense(LATENT, name="mean")(hidden)
    log_variance = layers.Dense(LATENT, name="log_variance")(hidden)
    encoder = keras.Model(images, [mean, log_variance, Sampling()([mean, log_variance])])
    codes = keras.Input([LATENT])
    hidden = layers.Dense(64, activation="relu")(codes)
    decoder = keras.Model(codes, layers.Dense(64, activation="sigmoid")(hidden))
    return VAE(encoder, decoder)


def main():
    """Train; return the model and its history."""
    keras.utils.set_random_seed(0)
    images = (load_digits().data / 16).astype("float32")
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = build_vae()
        model.compile(optimizer=keras.optimizers.Adam(2e-3))
    history = model.fit(
        images[:1500], batch_size=32, epochs=8, validation_data=(images[1500:],), verbose=2
    )
    return model, history.history


if __name__ == "__main__":
    main()
