"""Train a variational autoencoder of images of clothes: a model with a custom `train_step`.

    python examples/vae.py                                             one process
    tf-adasum-launch -n 4 examples/vae.py                              four local workers

Keras downloads Fashion-MNIST when the script runs for the first time: run it in one process first.
"""

import argparse
import time

import keras
import tensorflow as tf
from keras import layers

import tf_adasum

LATENT_DIM = 8  # numbers that describe an image


def parse_arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rule", default="adasum", choices=["adasum", "mean"], help="aggregation")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="constant")
    parser.add_argument("--epochs", type=int, default=2, help="number of epochs")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--delta", action="store_true", help="combine Adam's steps: DeltaAdasum")
    parser.add_argument("--test", action="store_true", help="evaluate the test images")
    return parser.parse_args()


def load(test):
    """Return 54,000 training images and images to evaluate, ``[rows, 784]``, from 0 to 1."""
    (images, _), (test_images, _) = keras.datasets.fashion_mnist.load_data()
    held_out = test_images if test else images[-6000:]
    return [own.reshape(-1, 784).astype("float32") / 255 for own in (images[:-6000], held_out)]


class VAE(keras.Model):
    """An encoder and a decoder that are trained together."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                layers.Input([784]),
                layers.Dense(256, activation="relu"),
                layers.Dense(2 * LATENT_DIM),
            ]
        )
        self.decoder = keras.Sequential(
            [layers.Input([LATENT_DIM]), layers.Dense(256, activation="relu"), layers.Dense(784)]
        )
        self.noise_seeds = keras.random.SeedGenerator(0)
        self.loss_mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        """The metrics that Keras resets at the start of an epoch."""
        return [self.loss_mean]

    def loss_of(self, images):
        """Return the negative evidence lower bound of the images, in nats, averaged over rows."""
        mean, log_variance = tf.split(self.encoder(images), 2, axis=1)
        noise = keras.random.normal(tf.shape(mean), seed=self.noise_seeds)
        logits = self.decoder(mean + tf.exp(log_variance / 2) * noise)
        pixels = tf.nn.sigmoid_cross_entropy_with_logits(images, logits)
        divergence = (tf.exp(log_variance) + tf.square(mean) - 1 - log_variance) / 2
        return tf.reduce_mean(tf.reduce_sum(pixels, 1) + tf.reduce_sum(divergence, 1))

    def train_step(self, images):
        """Take a step; return the mean loss since the start of the epoch."""
        with tf.GradientTape() as tape:
            loss = self.loss_of(images)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_mean.update_state(loss)
        return {"loss": self.loss_mean.result()}

    def test_step(self, images):
        """Return the mean loss."""
        self.loss_mean.update_state(self.loss_of(images))
        return {"loss": self.loss_mean.result()}


def main():
    """Train, and print the loss."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=arguments.rule)
    replicas = strategy.num_replicas_in_sync
    training, held_out = load(arguments.test)
    with strategy.scope():
        model = VAE()
        optimizer = keras.optimizers.Adam(arguments.learning_rate)
        if arguments.delta:
            optimizer = tf_adasum.optimizers.DeltaAdasum(optimizer)
        model.compile(optimizer)
    start = time.perf_counter()
    model.fit(training, batch_size=32 * replicas, epochs=arguments.epochs, verbose=2)
    seconds = time.perf_counter() - start
    loss = model.evaluate(held_out, batch_size=2000, verbose=0)
    if strategy.is_first_worker:
        print(f"loss {loss:.2f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
