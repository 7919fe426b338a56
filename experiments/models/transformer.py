"""A small Transformer that predicts the next character."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from experiments.models.model import Model
from experiments.simulation import layers


class Positions(keras.layers.Layer):
    """Adds a learned vector at each position."""

    def build(self, shape):
        """Make the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], initializer="uniform", name="positions")

    def call(self, x):
        """Return the sum."""
        return x + self.vectors


@dataclasses.dataclass(frozen=True)
class Transformer(Model):
    """Blocks of attention and of two dense layers, each behind a layer normalization.

    Attributes:
        vocabulary: how many characters there are.
        length: of a sequence.
        width: of a position's vector.
        heads: of the attention.
        blocks: how many.
    """

    vocabulary: int
    length: int = 32
    width: int = 32
    heads: int = 2
    blocks: int = 2

    @property
    def example(self):
        """A sequence and the characters that follow."""
        sequence = tf.TensorSpec([self.length], tf.int32)
        return sequence, sequence

    def keras(self):
        """Return a new Keras model."""
        inputs = keras.layers.Input([self.length], dtype="int32")
        x = keras.layers.Embedding(self.vocabulary, self.width)(inputs)
        x = Positions()(x)
        for _ in range(self.blocks):
            normal = keras.layers.LayerNormalization()(x)
            attention = keras.layers.MultiHeadAttention(self.heads, self.width // self.heads)
            x += attention(normal, normal, use_causal_mask=True)
            hidden = keras.layers.LayerNormalization()(x)
            hidden = keras.layers.Dense(2 * self.width, activation="relu")(hidden)
            x += keras.layers.Dense(self.width)(hidden)
        x = keras.layers.LayerNormalization()(x)
        return keras.Model(inputs, keras.layers.Dense(self.vocabulary)(x))

    def logits(self, weights, x):
        """Return the logits ``[N, B, length, vocabulary]``."""
        left = iter(weights)

        def take(count):
            return [next(left) for _ in range(count)]

        replicas, batch, length = x.shape
        table, positions = take(2)
        x = layers.embedding(tf.reshape(x, [replicas, -1]), table)
        x = tf.reshape(x, [replicas, batch, length, self.width]) + positions[:, None]
        for _ in range(self.blocks):
            x += self._attention(layers.layer_normalization(x, *take(2)), take(8))
            hidden = layers.layer_normalization(x, *take(2))
            hidden = tf.nn.relu(layers.dense(hidden, *take(2)))
            x += layers.dense(hidden, *take(2))
        return layers.dense(layers.layer_normalization(x, *take(2)), *take(2))

    def _attention(self, x, weights):
        replicas, batch, length, width = x.shape
        size = width // self.heads
        queries, keys, values = (
            tf.reshape(
                layers.dense(
                    x,
                    tf.reshape(weights[2 * i], [replicas, width, width]),
                    tf.reshape(weights[2 * i + 1], [replicas, width]),
                ),
                [replicas * batch, length, self.heads, size],
            )
            for i in range(3)
        )
        queries, keys, values = (tf.transpose(own, [0, 2, 1, 3]) for own in (queries, keys, values))
        scores = tf.matmul(queries, keys, transpose_b=True) / np.sqrt(size)
        is_ahead = np.triu(np.full([length, length], True), 1)
        scores = tf.where(is_ahead, np.float32(-1e9), scores)
        mixed = tf.transpose(tf.nn.softmax(scores) @ values, [0, 2, 1, 3])
        mixed = tf.reshape(mixed, [replicas, batch, length, width])
        return layers.dense(mixed, tf.reshape(weights[6], [replicas, width, width]), weights[7])
