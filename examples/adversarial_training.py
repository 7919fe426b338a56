"""Train a digit classifier on adversarial images. Each step of the loop computes two gradients.

    python examples/adversarial_training.py                            one process
    tf-adasum-launch -n 4 examples/adversarial_training.py             four local workers

Each replica changes its images in the direction that increases the loss (the fast gradient sign
method), and trains on the changed images. The digits are scikit-learn's 1797 scans of 8×8 pixels.

Reference: Goodfellow et al., "Explaining and Harnessing Adversarial Examples", arXiv 1412.6572.
"""

import argparse
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import tf_adasum

EPSILON = 0.1  # the change of each pixel, whose values are from 0 to 1


def parse_arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rule", default="adasum", choices=["adasum", "mean"], help="aggregation")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="constant")
    parser.add_argument("--epochs", type=int, default=12, help="number of epochs")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--test", action="store_true", help="evaluate the test images")
    return parser.parse_args()


def load(test):
    """Return images ``[rows, 8, 8, 1]`` with labels, for training and evaluation."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, ..., None] / 16).astype("float32")
    labels = digits.target[order]
    held_out = slice(300) if test else slice(300, 600)
    return (images[600:], labels[600:]), (images[held_out], labels[held_out])


def build_network():
    """Return a network of two convolutions, which returns logits."""
    return keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def main():
    """Train, and print the accuracy on changed images."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=arguments.rule)
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        model = build_network()
        optimizer = keras.optimizers.SGD(arguments.learning_rate, momentum=0.9)
        optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def adversarial_images(images, labels):
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = loss_of(labels, model(images))
        return tf.clip_by_value(images + EPSILON * tf.sign(tape.gradient(loss, images)), 0, 1)

    def train_replica(images, labels):
        images = adversarial_images(images, labels)
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def test_replica(images, labels):
        accuracy.update_state(labels, model(adversarial_images(images, labels)))

    @tf.function
    def train_step(batch):
        strategy.run(train_replica, args=batch)

    @tf.function
    def test_step(batch):
        strategy.run(test_replica, args=batch)

    training, held_out = map(tf.data.Dataset.from_tensor_slices, load(arguments.test))
    training = training.shuffle(2000, seed=arguments.seed).batch(4 * replicas, drop_remainder=True)
    training = strategy.experimental_distribute_dataset(training)
    held_out = strategy.experimental_distribute_dataset(held_out.batch(300))
    start = time.perf_counter()
    with strategy.working_together():
        for _ in range(arguments.epochs):
            for batch in training:
                train_step(batch)
        seconds = time.perf_counter() - start
        for batch in held_out:
            test_step(batch)
        result = float(accuracy.result())  # all workers call it, because it adds their counts
    if strategy.is_first_worker:
        print(f"accuracy {result:.4f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
