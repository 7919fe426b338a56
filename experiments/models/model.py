"""The base class of the experiments' models."""

import functools

import keras
import tensorflow as tf


class Model:
    """A model in Keras's form and in that of N replicas at once.

    Attributes:
        example: `tf.TensorSpec`s of an input and of its label.
        classes: how many labels there are, at least.
    """

    example: tuple[tf.TensorSpec, tf.TensorSpec]
    classes: int = 10

    def keras(self):
        """Return a new Keras model."""
        raise NotImplementedError

    def logits(self, weights, x):
        """Return the logits of N replicas.

        Args:
            weights: for each trainable variable a tensor ``[N, ...]``.
            x: inputs ``[N, B, ...]``.
        """
        raise NotImplementedError

    def score(self, logits, y):
        """Return what is measured on a split besides the loss, the larger the better: accuracy."""
        hits = tf.cast(tf.argmax(logits, -1, y.dtype) == y, tf.float32)
        return tf.reduce_mean(hits)

    @functools.cached_property
    def shapes(self):
        """The shapes of the trainable variables."""
        return [own.shape for own in self.initial(0)]

    @functools.cache  # noqa: B019 - there are few models, and they live as long as the program
    def initial(self, seed):
        """Return the initial weights, a list of arrays."""
        keras.utils.set_random_seed(seed)
        return [own.numpy() for own in self.keras().trainable_variables]
