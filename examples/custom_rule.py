"""Train with a rule of your own, which clips gradients to the median of their lengths and averages.

    python examples/custom_rule.py

A small network learns scikit-learn's digits on four logical CPU devices, one of which reads its
images 100 times too bright. Its gradients are long and drown the others in the mean. Prints the
validation accuracy on right images, with the mean and with the rule.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_adasum

REPLICAS = 4
ROWS = 16  # of a replica in a batch


class MedianClip(tf_adasum.rules.AggregationRule):
    """``c_i = min(1, median / ‖g_i‖) / R``: scales large gradients down."""

    granularity = "model"  # one coefficient for all variables of a replica

    def coefficients(self, gram):
        """Return ``[S, R]`` from ``[S, R, R]``: norms are on the diagonal."""
        replicas = gram.shape[-1]
        norms = tf.sqrt(tf.linalg.diag_part(gram))
        ordered = tf.sort(norms, axis=1)
        low, high = ordered[:, (replicas - 1) // 2], ordered[:, replicas // 2]
        median = (low + high) / 2
        clipped = tf.minimum(norms, median[:, None])
        return tf.math.divide_no_nan(clipped, norms) / replicas


def digits():
    """Return training and validation images ``[n, 64]`` in [0, 1] and labels."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[shuffled] / 16).astype("float32"), labels[shuffled]
    batches = (len(labels) - 300) // (REPLICAS * ROWS)
    kept = batches * REPLICAS * ROWS
    return (images[:kept], labels[:kept]), (images[-300:], labels[-300:])


def train(rule, epochs):
    """Return the accuracy on the validation images after training with a rule."""
    keras.utils.set_random_seed(0)
    (images, labels), validation = digits()
    # Replica 0 gets the first rows of every batch.
    is_of_replica_0 = np.arange(len(labels)) % (REPLICAS * ROWS) < ROWS
    images[is_of_replica_0] *= 100

    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=rule)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([64]),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(0.5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(images, labels, batch_size=REPLICAS * ROWS, epochs=epochs, shuffle=False, verbose=0)
    return model.evaluate(*validation, batch_size=300, verbose=0)[1]


def main():
    """Train with the mean and with the rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    )
    for name, rule in (("mean", "mean"), ("median clip", MedianClip())):
        print(f"{name:12} validation accuracy {train(rule, epochs):.3f}")


if __name__ == "__main__":
    main()
