"""Sequences of different lengths, from a `PyDataset` and from a Python generator.

A GRU says which of two words occurs more often in a text. In the `PyDataset` texts of about the
same length come together, and each batch is padded to its own longest text.
"""

import keras
import numpy as np
from keras import layers

import tf_adasum

WORDS = 12  # 0 is padding; the texts' words are 1 to 11
BATCH_SIZE = 32


def make_texts(count, seed):
    """Return texts, arrays of 5 to 24 words, and whether word 1 occurs more often than word 2."""
    random = np.random.default_rng(seed)
    texts = []
    while len(texts) < count:
        text = random.integers(1, WORDS, random.integers(5, 25))
        text[random.random(len(text)) < 0.4] = random.integers(1, 3)
        if np.sum(text == 1) != np.sum(text == 2):
            texts.append(text)
    return texts, np.array([np.sum(text == 1) > np.sum(text == 2) for text in texts], "float32")


class TextBatches(keras.utils.PyDataset):
    """Batches of texts of about the same length."""

    def __init__(self, texts, labels, **options):
        super().__init__(**options)
        self.order = np.argsort([len(text) for text in texts], kind="stable")
        self.texts, self.labels = texts, labels

    def __len__(self):
        return -(-len(self.texts) // BATCH_SIZE)

    def __getitem__(self, index):
        rows = self.order[index * BATCH_SIZE : (index + 1) * BATCH_SIZE]
        texts = [self.texts[row] for row in rows]
        return keras.utils.pad_sequences(texts, padding="post"), self.labels[rows]


def endless_batches(seed):
    """Yield batches of new texts, for ever."""
    while True:
        texts, labels = make_texts(BATCH_SIZE, seed)
        yield keras.utils.pad_sequences(texts, maxlen=24, padding="post"), labels
        seed += 1


def main():
    """Train on both; return the model and its history."""
    keras.utils.set_random_seed(0)
    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Embedding(WORDS, 8, mask_zero=True),
                layers.GRU(24),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    validation = TextBatches(*make_texts(300, seed=1))
    batches = TextBatches(*make_texts(800, seed=2))
    first = model.fit(batches, epochs=3, validation_data=validation, verbose=2).history
    generated = model.fit(
        endless_batches(seed=100),
        steps_per_epoch=20,
        epochs=1,
        validation_data=endless_batches(seed=1000),
        validation_steps=10,
        verbose=2,
    ).history
    return model, {name: first[name] + generated[name] for name in first}


if __name__ == "__main__":
    main()
