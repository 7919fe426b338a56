"""What the worker processes do for `test_resuming_data.py`: a training that is killed and resumed.

Each stage creates its data and its model again, as each start of a program does.
"""

import collections
import contextlib
import os
import pathlib
import warnings

import keras
import numpy as np
import tensorflow as tf

from scenarios.data import RowBatches
from tf_adasum.callbacks import BackupAndRestore

ROWS, BATCH, EPOCHS = 64, 4, 3
STEPS = ROWS // BATCH
X = np.arange(ROWS, dtype="float32")[:, np.newaxis]

Dataset = tf.data.Dataset


def rows_of_files(folder):
    """Return a dataset of rows in eight files, which are read in random order."""
    for number in range(8):
        path = pathlib.Path(folder) / f"rows{number}.txt"
        path.write_text("".join(f"{int(row)}\n" for row in X[number::8, 0]))
    files = Dataset.list_files(f"{folder}/rows*.txt", seed=2)
    lines = files.interleave(tf.data.TextLineDataset, cycle_length=2, block_length=3)
    return lines.map(lambda line: tf.reshape(tf.strings.to_number(line), [1])).shuffle(8, seed=3)


def interleaved():
    """Return a dataset that interleaves parts, each of which is shuffled."""
    return Dataset.range(4).interleave(
        lambda part: Dataset.range(16 * part, 16 * part + 16).shuffle(16, seed=1)
    )


def generator():
    number = 0
    while True:
        rows = X[np.random.default_rng(number).permutation(ROWS)[:BATCH]]
        yield rows, rows
        number += 1


def batched(dataset):
    dataset = dataset.map(lambda row: tf.reshape(tf.cast(row, tf.float32), [1]))
    return dataset.map(lambda row: (row, row)).batch(BATCH, drop_remainder=True)


def also_for_validation(dataset):
    dataset = batched(dataset)
    return (dataset,), {"validation_data": dataset}


def rows():
    return Dataset.from_tensor_slices(X)


DATA = {
    "array": lambda folder: ((X, X), {"batch_size": BATCH}),
    "array by batches": lambda folder: ((X, X), {"batch_size": BATCH, "shuffle": "batch"}),
    "shuffled, op seed": lambda folder: ((batched(rows().shuffle(ROWS, seed=1)),), {}),
    "shuffled, global seed": lambda folder: ((batched(rows().shuffle(ROWS)),), {}),
    "shuffled once": lambda folder: (
        (batched(rows().shuffle(ROWS, seed=1, reshuffle_each_iteration=False)),),
        {},
    ),
    "cached, shuffled": lambda folder: ((batched(rows().cache().shuffle(ROWS, seed=1)),), {}),
    "shuffled, cached": lambda folder: (
        (batched(rows().shuffle(ROWS, seed=1).cache().shuffle(8, seed=2)),),
        {},
    ),
    "repeated": lambda folder: (
        (batched(rows().shuffle(ROWS, seed=1).repeat()),),
        {"steps_per_epoch": STEPS - 2},
    ),
    "steps of a pass": lambda folder: (
        (batched(rows().shuffle(ROWS, seed=1)),),
        {"steps_per_epoch": STEPS // 2},
    ),
    "interleaved": lambda folder: ((batched(interleaved().shuffle(ROWS, seed=2)),), {}),
    "also validation data": lambda folder: also_for_validation(rows().shuffle(ROWS, seed=1)),
    "files": lambda folder: ((batched(rows_of_files(folder)),), {}),
    "PyDataset": lambda folder: ((RowBatches(X, BATCH),), {}),
    "PyDataset with threads": lambda folder: ((RowBatches(X, BATCH, workers=2),), {}),
    "PyDataset that shuffles": lambda folder: ((RowBatches(X, BATCH, "end"),), {}),
    "generator": lambda folder: ((generator(),), {"steps_per_epoch": STEPS}),
}

# Where the training is killed: the epoch, the last batch in it, and how often it is backed up.
PLACES = {
    "first epoch": (0, 5, 4),
    "later epoch": (1, 6, 4),
    "end of an epoch": (1, None, "epoch"),
    "validation": (1, "validation", 1),
}


class Recorder(keras.layers.Layer):
    """Passes its inputs on, and writes down the rows."""

    def __init__(self, seen):
        super().__init__()
        self.note = seen.append  # Keras would copy a list

    @tf.autograph.experimental.do_not_convert
    def call(self, x, training=False):
        if training:

            def note(values):
                self.note(sorted(values[:, 0].astype(int).tolist()))
                return values

            x = tf.ensure_shape(tf.numpy_function(note, [x], tf.float32), x.shape)
        return x / ROWS


class Kill(keras.callbacks.Callback):
    """Ends the training at a place of `PLACES`, as a lost worker would."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.place, self.epoch = (epoch, batch), None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if self.place == (epoch - 1, None):
            raise KeyError("killed")

    def on_train_batch_end(self, batch, logs=None):
        if self.place == (self.epoch, batch):
            raise KeyError("killed")

    def on_test_batch_end(self, batch, logs=None):
        if self.place == (self.epoch, "validation"):
            raise KeyError("killed")


def train(strategy, kind, place, stage, folder):
    """Run a stage of a training.

    Args:
        strategy: the workers' strategy.
        kind: a name in `DATA`.
        place: a name in `PLACES`.
        stage: "unbroken", "killed" or "resumed".
        folder: an empty folder, the same in all stages.

    Returns:
        The rows of this worker's steps, ``[steps, rows]``, and the weights.
    """
    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(1)
    epoch, batch, save_freq = PLACES[place]
    own = pathlib.Path(folder) / f"files{strategy.rank}"
    os.makedirs(own, exist_ok=True)
    args, options = DATA[kind](own)
    validation = {"validation_data": (X[:8], X[:8])} if place == "validation" else {}
    seen = []
    with strategy.scope():
        layers = [keras.Input([1]), Recorder(seen), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    backup_dir = f"{folder}/{'unbroken' if stage == 'unbroken' else 'broken'}"
    backup = BackupAndRestore(backup_dir, save_freq=save_freq, delete_checkpoint=False)
    kill = [Kill(epoch, batch)] if stage == "killed" else []
    with contextlib.suppress(KeyError), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*TFA-609")  # the order can be repeated
        model.fit(
            *args,
            epochs=EPOCHS,
            verbose=0,
            validation_batch_size=4,
            callbacks=[backup, *kill],
            **(validation | options),
        )
    weights = {f"weight{number}": value for number, value in enumerate(model.get_weights())}
    return {"rows": np.reshape(seen, [-1, BATCH // strategy._workers.count]), **weights}


def compared(kind, place, unbroken, killed, resumed):
    """Compare a resumed training with the unbroken one. The arguments are results of all workers.

    Returns:
        How many rows of the interrupted epoch were left out, how many were used twice, and whether
        all workers have the unbroken training's weights, to the bit.
    """
    steps = DATA[kind]("/tmp")[1].get("steps_per_epoch", STEPS)
    epoch, batch, save_freq = PLACES[place]
    if isinstance(batch, int):
        done = (epoch * steps + batch) // save_freq * save_freq
        epoch = done // steps
    else:  # the epoch's end; what comes next is the next epoch
        epoch, done = epoch + 1, (epoch + 1) * steps
    expected, actual = collections.Counter(), collections.Counter()
    for before, until, after in zip(unbroken, killed, resumed, strict=True):
        rows = np.concatenate([until["rows"][:done], after["rows"]])
        expected.update(before["rows"][epoch * steps :][:steps].ravel().tolist())
        actual.update(rows[epoch * steps :][:steps].ravel().tolist())
    left_out, twice = (expected - actual).total(), (actual - expected).total()
    names = unbroken[0].keys() - {"rows"}
    pairs = [(unbroken[0][name], each[name]) for name in names for each in resumed]
    return left_out, twice, all(np.array_equal(*pair) for pair in pairs)
