"""A small model of clicks with embeddings, in the form of DLRM.

Reference: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", arXiv 1906.00091.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from experiments.models.model import Model
from experiments.simulation import layers


class Products(keras.layers.Layer):
    """Inner products of all pairs of vectors."""

    def call(self, x):
        """Return ``[B, K (K - 1) / 2]`` of ``[B, K, W]``."""
        return pairs_of(keras.ops.matmul(x, keras.ops.transpose(x, [0, 2, 1])))


def pairs_of(products):
    """Return the products of each two vectors, once, of ``[B, K, K]``."""
    vectors = products.shape[-1]
    below = np.flatnonzero(np.tril(np.ones([vectors, vectors]), -1))
    return tf.gather(tf.reshape(products, [-1, vectors**2]), below, axis=1)


@dataclasses.dataclass(frozen=True)
class Clicks(Model):
    """Dense layers on counts, a table for each field, inner products of all, dense layers.

    Attributes:
        counts: how many there are; they come first in a row.
        fields: the number of values of each field.
        width: of a vector.
        hidden: of the first layers on counts, and on products.
    """

    counts: int
    fields: tuple[int, ...]
    width: int = 8
    hidden: tuple[int, int] = (16, 32)

    classes = 2

    @property
    def example(self):
        """Counts and values, and whether it was clicked."""
        return tf.TensorSpec([self.counts + len(self.fields)], tf.int32), tf.TensorSpec(
            [], tf.int32
        )

    def keras(self):
        """Return a new Keras model."""
        inputs = keras.layers.Input([self.counts + len(self.fields)], dtype="int32")
        counts = keras.ops.log1p(keras.ops.cast(inputs[:, : self.counts], "float32"))
        x = keras.layers.Dense(self.hidden[0], activation="relu")(counts)
        x = keras.layers.Dense(self.width, activation="relu")(x)
        rows = [
            keras.layers.Embedding(size, self.width)(inputs[:, self.counts + field])
            for field, size in enumerate(self.fields)
        ]
        products = Products()(keras.ops.stack([x, *rows], axis=1))
        x = keras.layers.Concatenate()([x, products])
        x = keras.layers.Dense(self.hidden[1], activation="relu")(x)
        return keras.Model(inputs, keras.layers.Dense(2)(x))

    def logits(self, weights, x):
        """Return the logits ``[N, B, 2]``."""
        kernel_1, bias_1, kernel_2, bias_2, *tables = weights
        *tables, kernel_3, bias_3, kernel_4, bias_4 = tables
        counts = tf.math.log1p(tf.cast(x[..., : self.counts], tf.float32))
        vector = tf.nn.relu(layers.dense(counts, kernel_1, bias_1))
        vector = tf.nn.relu(layers.dense(vector, kernel_2, bias_2))
        rows = [
            layers.embedding(x[..., self.counts + field], table)
            for field, table in enumerate(tables)
        ]
        vectors = tf.stack([vector, *rows], axis=2)
        vectors = tf.reshape(vectors, [-1, len(rows) + 1, self.width])
        products = pairs_of(tf.matmul(vectors, vectors, transpose_b=True))
        products = tf.reshape(products, [x.shape[0], -1, products.shape[-1]])
        joined = tf.concat([vector, products], axis=-1)
        return layers.dense(tf.nn.relu(layers.dense(joined, kernel_3, bias_3)), kernel_4, bias_4)

    def score(self, logits, y):
        """Return the AUC: the share of pairs in which what was clicked has the higher logit."""
        return auc(logits[:, 1] - logits[:, 0], y)


def auc(scores, y):
    """Return the area under the ROC curve, by the sum of the ranks of those with y = 1.

    Equal scores count as they come; there are few.
    """
    ranks = tf.cast(tf.argsort(tf.argsort(scores)), tf.float64) + 1
    y = tf.cast(y, tf.float64)
    ones = tf.reduce_sum(y)
    zeros = tf.cast(tf.size(y), tf.float64) - ones
    return (tf.reduce_sum(ranks * y) - ones * (ones + 1) / 2) / (ones * zeros)
