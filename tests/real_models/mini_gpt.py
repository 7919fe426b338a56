"""A miniature GPT on letters: an attention block of its own, which writes after every epoch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_adasum

LENGTH = 16
WIDTH = 32


def make_text(sentences, seed=0):
    """Return sentences such as "the old cat sees a bird."."""
    random = np.random.default_rng(seed)
    places = (
        "the/a/my old/small/red cat/dog/bird sees/hears/finds the/a/my tree/house/river".split()
    )
    words = [place.split("/") for place in places]
    return " ".join(" ".join(map(random.choice, words)) + "." for _ in range(sentences))


class Positions(layers.Layer):
    """The sum of what a letter and what its position mean."""

    def __init__(self, letters):
        super().__init__()
        self.letters = layers.Embedding(letters, WIDTH)
        self.positions = layers.Embedding(LENGTH, WIDTH)

    def call(self, text):
        return self.letters(text) + self.positions(tf.range(tf.shape(text)[-1]))


class Block(layers.Layer):
    """Causal self-attention of several heads, and a network for each position."""

    def __init__(self, heads=2):
        super().__init__()
        self.heads = heads
        self.project = layers.Dense(3 * WIDTH)
        self.join = layers.Dense(WIDTH)
        self.expand = layers.Dense(4 * WIDTH, activation="gelu")
        self.contract = layers.Dense(WIDTH)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dropout = layers.Dropout(0.1)

    def attention(self, x):
        rows, length = tf.shape(x)[0], tf.shape(x)[1]
        parts = tf.reshape(self.project(x), [rows, length, 3, self.heads, WIDTH // self.heads])
        query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        scores = tf.matmul(query, key, transpose_b=True) * (WIDTH // self.heads) ** -0.5
        past = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
        weights = tf.nn.softmax(tf.where(past, scores, -1e9))
        found = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
        return self.join(tf.reshape(found, [rows, length, WIDTH]))

    def call(self, x, training=None):
        x += self.dropout(self.attention(self.norms[0](x)), training=training)
        return x + self.contract(self.expand(self.norms[1](x)))


class Writer(keras.callbacks.Callback):
    """Goes on from a text, always with the likeliest letter, after every epoch."""

    def __init__(self, start, alphabet, count=5):
        super().__init__()
        self.start, self.alphabet, self.count = start, alphabet, count
        self.texts = []

    def on_epoch_end(self, epoch, logs=None):
        text = self.start
        for _ in range(self.count):
            known = np.array([[self.alphabet.index(letter) for letter in text[-LENGTH:]]])
            logits = self.model.predict(known, verbose=0)
            text += self.alphabet[logits[0, -1].argmax()]
        self.texts.append(text)
        print(f"epoch {epoch + 1}: {text}")


def main():
    """Train; return the model, its history, and what it has written after each epoch."""
    keras.utils.set_random_seed(0)
    text = make_text(250)
    alphabet = sorted(set(text))
    numbers = np.array([alphabet.index(letter) for letter in text], "int32")
    windows = np.lib.stride_tricks.sliding_window_view(numbers, LENGTH + 1)[::5]
    x, y = windows[:, :-1], windows[:, 1:]
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        inputs = keras.Input([None], dtype="int32")
        hidden = Block()(Positions(len(alphabet))(inputs))
        model = keras.Model(inputs, layers.Dense(len(alphabet))(hidden))
        model.compile(
            optimizer=keras.optimizers.Adam(3e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    writer = Writer("the old cat sees the hou", alphabet)
    history = model.fit(x, y, batch_size=64, epochs=4, callbacks=[writer], verbose=2).history
    return model, {**history, "written": writer.texts, "text": text}


if __name__ == "__main__":
    main()
