"""The CNN of two convolutions of examples/train_digits.py; for signals with a height of 1."""

import dataclasses

import keras
import tensorflow as tf

from experiments.models.model import Model
from experiments.simulation import layers


@dataclasses.dataclass(frozen=True)
class CNN(Model):
    """Two convolutions and two dense layers.

    Attributes:
        shape: of an image: height, width, channels.
        kernel: height and width of the convolutions' kernels.
        pool: height and width of what is pooled.
    """

    shape: tuple[int, int, int] = (8, 8, 1)
    kernel: tuple[int, int] = (3, 3)
    pool: tuple[int, int] = (2, 2)

    @property
    def example(self):
        """An image and its class."""
        return tf.TensorSpec(self.shape), tf.TensorSpec([], tf.int32)

    def keras(self):
        """Return a new Keras model."""
        two = {"padding": "same", "activation": "relu"}
        return keras.Sequential(
            [
                keras.layers.Input(self.shape),
                keras.layers.Conv2D(16, self.kernel, **two),
                keras.layers.MaxPooling2D(self.pool),
                keras.layers.Conv2D(32, self.kernel, **two),
                keras.layers.MaxPooling2D(self.pool),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )

    def logits(self, weights, x):
        """Return the logits ``[N, B, 10]``."""
        kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3, kernel_4, bias_4 = weights
        x = tf.nn.relu(layers.convolution(x, kernel_1, bias_1))
        x = layers.max_pooling(x, self.pool)
        x = tf.nn.relu(layers.convolution(x, kernel_2, bias_2))
        x = layers.max_pooling(x, self.pool)
        x = tf.reshape(x, [*x.shape[:2], -1])
        x = tf.nn.relu(layers.dense(x, kernel_3, bias_3))
        return layers.dense(x, kernel_4, bias_4)
