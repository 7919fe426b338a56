"""word2vec: skip-gram with negative sampling."""

import dataclasses

import keras
import tensorflow as tf

from experiments.models.model import Model


@keras.saving.register_keras_serializable("experiments")
def loss_of_pairs(labels, logits):
    """Return the loss of each row, summed over the word near it and those that were drawn."""
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, logits.dtype), logits)
    return tf.reduce_sum(losses, axis=-1)


@dataclasses.dataclass(frozen=True)
class SkipGram(Model):
    """Two tables of vectors: of words, and of the words near them; a logit is an inner product.

    Rows are ``[word, near, drawn, …]``, their logits those of all but the first.

    Attributes:
        vocabulary: V, how many words there are.
        width: d, of a vector.
        negatives: how many words are drawn.
    """

    vocabulary: int
    width: int = 32
    negatives: int = 5

    @property
    def example(self):
        """A row and its labels."""
        return tf.TensorSpec([2 + self.negatives], tf.int32), tf.TensorSpec([1 + self.negatives])

    def keras(self):
        """Return a new Keras model; the tables start as word2vec's do."""
        bound = 0.5 / self.width
        initial = keras.initializers.RandomUniform(-bound, bound)
        inputs = keras.layers.Input([2 + self.negatives], dtype="int32")
        of_words = keras.layers.Embedding(self.vocabulary, self.width, initial, name="words")
        of_near = keras.layers.Embedding(self.vocabulary, self.width, "zeros", name="near")
        words, near = of_words(inputs[:, :1]), of_near(inputs[:, 1:])
        return keras.Model(inputs, keras.ops.sum(words * near, axis=-1))

    def gradients(self, tables, x, y):
        """Return each replica's gradients of its own mean loss, as the rows they touch.

        Args:
            tables: two tensors ``[V, d]``.
            x: rows ``[N, B, 2 + negatives]``.
            y: labels ``[N, B, 1 + negatives]``.

        Returns:
            For each table the indices ``[N, K]`` and the values ``[N, K, d]``; indices may repeat.
        """
        replicas, batch, _ = x.shape
        of_words, of_near = tf.gather(tables[0], x[..., :1]), tf.gather(tables[1], x[..., 1:])
        errors = (tf.sigmoid(tf.reduce_sum(of_words * of_near, axis=-1)) - y)[..., None] / batch
        to_words = tf.reduce_sum(errors * of_near, axis=2)
        to_near = tf.reshape(errors * of_words, [replicas, -1, self.width])
        return [(x[..., 0], to_words), (tf.reshape(x[..., 1:], [replicas, -1]), to_near)]

    def loss(self, tables, x, y):
        """Return the mean loss of rows ``[B, 2 + negatives]``."""
        of_words, of_near = tf.gather(tables[0], x[:, :1]), tf.gather(tables[1], x[:, 1:])
        return tf.reduce_mean(loss_of_pairs(y, tf.reduce_sum(of_words * of_near, axis=-1)))
