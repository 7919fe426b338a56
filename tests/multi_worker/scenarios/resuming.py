"""What the worker processes do for `test_resuming.py`: a training that is killed and resumed.

Each stage creates its data and its model again, as each start of a program does.
"""

import contextlib
import os
import pathlib
import signal
import warnings

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import LossScaleOptimizer

from scenarios.basics import compiled, on_replicas, use_rule
from scenarios.data import RowBatches
from scenarios.keras import SeenRows
from scenarios.multi_optimizer import adam, multi
from tf_adasum import optimizers
from tf_adasum.aggregation import rules
from tf_adasum.callbacks import BackupAndRestore
from tf_adasum.compat import keras as keras_compat

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


def rows():
    return Dataset.from_tensor_slices(X)


def both(dataset):
    return (dataset,), {"validation_data": dataset}


def shuffled(dataset, **options):
    return batched(dataset.shuffle(ROWS, seed=1, **options))


DATASETS = {
    "shuffled, op seed": lambda: shuffled(rows()),
    "shuffled, global seed": lambda: batched(rows().shuffle(ROWS)),
    "shuffled once": lambda: shuffled(rows(), reshuffle_each_iteration=False),
    "cached, shuffled": lambda: shuffled(rows().cache()),
    "shuffled, cached": lambda: batched(rows().shuffle(ROWS, seed=1).cache().shuffle(8, seed=2)),
    "interleaved": lambda: batched(interleaved().shuffle(ROWS, seed=2)),
    "PyDataset": lambda: RowBatches(X, BATCH),
    "PyDataset with threads": lambda: RowBatches(X, BATCH, workers=2),
    "PyDataset that shuffles": lambda: RowBatches(X, BATCH, "end"),
}
# For each kind a function of a folder, which returns the arguments of `fit`.
DATA = {
    "array": lambda folder: ((X, X), {"batch_size": BATCH}),
    "array by batches": lambda folder: ((X, X), {"batch_size": BATCH, "shuffle": "batch"}),
    **{name: lambda folder, make=make: ((make(),), {}) for name, make in DATASETS.items()},
    "repeated": lambda folder: ((shuffled(rows()).repeat(),), {"steps_per_epoch": STEPS - 2}),
    "steps of a pass": lambda folder: ((shuffled(rows()),), {"steps_per_epoch": STEPS // 2}),
    "also validation data": lambda folder: both(shuffled(rows())),
    "files": lambda folder: ((batched(rows_of_files(folder)),), {}),
    "generator": lambda folder: ((generator(),), {"steps_per_epoch": STEPS}),
}

# Where the training is killed: the epoch, the last batch in it, and how often it is backed up.
PLACES = {
    "first epoch": (0, 5, 4),
    "later epoch": (1, 6, 4),
    "end of an epoch": (1, None, "epoch"),
    "validation": (1, "validation", 1),
}


class EndAt(keras.callbacks.Callback):
    """At a place of `PLACES`, ends the training as a lost worker would, or signals this process."""

    def __init__(self, epoch, batch, sends_signal):
        super().__init__()
        self.place, self.epoch, self.sends_signal = (epoch, batch), None, sends_signal

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.end_at(epoch - 1, None)

    def on_train_batch_end(self, batch, logs=None):
        self.end_at(self.epoch, batch)

    def on_test_batch_end(self, batch, logs=None):
        self.end_at(self.epoch, "validation")

    def end_at(self, *place):
        if self.place == place:
            if not self.sends_signal:
                raise KeyError("killed")
            self.place = None  # the validation has further batches
            os.kill(os.getpid(), signal.SIGTERM)


SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
# Of each optimizer: the rule, and what makes it. "plain" trains a model of one layer; the others
# have dropout, and statistics that differ between replicas.
TRAININGS = {
    "plain": ("adasum", lambda: Adam(0.01)),
    "adam": ("adasum", lambda: Adam(0.01, use_ema=True, gradient_accumulation_steps=2)),
    "adascale": ("mean", lambda: optimizers.AdaScale(SGD(0.005, momentum=0.9))),
    "adacons": (rules.AdaCons(momentum=0.9), lambda: SGD(0.005, momentum=0.9)),
    "delta": ("adasum", lambda: optimizers.DeltaAdasum(Adam(0.02), local_steps=3)),
    "several": ("adasum", lambda: multi(adam)),
    "loss_scale": (
        "adasum",
        lambda: LossScaleOptimizer(Adam(0.01), initial_scale=8.0, dynamic_growth_steps=3),
    ),
}


def model_of(strategy, seen, training="plain", **options):
    """Return a model that begins with `seen`, a `SeenRows`."""
    tf.get_logger().setLevel("ERROR")
    rule, make = TRAININGS[training]
    use_rule(strategy, rule)

    def make_layers():
        layers = keras.layers
        hidden = [layers.Dense(8, "tanh", name="one"), layers.BatchNormalization(momentum=0.5)]
        hidden = [] if training == "plain" else [*hidden, layers.Dropout(0.3)]
        return [keras.Input([1]), seen, layers.Rescaling(1 / ROWS), *hidden, layers.Dense(1)]

    return compiled(strategy, make_layers, make, metrics=["mae"], jit_compile=False, **options)


def train(
    strategy,
    kind,
    place,
    stage,
    folder,
    training="plain",
    is_keras=False,
    signalled=None,
    **options,
):
    """Run a stage of a training.

    Args:
        strategy: the workers' strategy.
        kind: a name in `DATA`.
        place: a name in `PLACES`.
        stage: "unbroken", "killed" or "resumed", by a model with other weights.
        folder: an empty folder, the same in all stages.
        training: a name in `TRAININGS`.
        is_keras: whether worker 0 alone has a callback, that of Keras.
        signalled: ranks of the workers that get a signal, where others would be killed.
        options: further ones of `model_of`.

    Returns:
        The rows of this worker's steps, ``[steps, rows]``, all variables on each local replica,
        the logs, the epochs, the texts of the warnings, and the exit status: 0 without one.
    """
    keras.utils.set_random_seed(1)  # also of the datasets, which are made now
    epoch, batch, save_freq = PLACES[place]
    own = pathlib.Path(folder) / f"files{strategy.rank}"
    os.makedirs(own, exist_ok=True)
    args, of_fit = DATA[kind](own)
    validation = {"validation_data": (X[:8], X[:8])} if place == "validation" else {}
    seen = SeenRows(only_training=True)
    model = model_of(strategy, seen, training, **options)
    if stage == "resumed":
        model.set_weights([each + 1 for each in model.get_weights()])
    backup_dir = f"{folder}/{'unbroken' if stage == 'unbroken' else 'broken'}"
    make = keras.callbacks.BackupAndRestore if is_keras else BackupAndRestore
    callbacks = [make(backup_dir, save_freq=save_freq, delete_checkpoint=False)]
    callbacks = [] if is_keras and strategy.rank > 0 else callbacks
    if stage == "killed" and (signalled is None or strategy.rank in signalled):
        callbacks.append(EndAt(epoch, batch, sends_signal=signalled is not None))
    callbacks += [keras.callbacks.LearningRateScheduler(lambda _, rate: 0.8 * rate)]
    code = 0
    with contextlib.suppress(KeyError), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("error", message=".*TFA-609")  # the order can be repeated
        try:
            model.fit(
                *args,
                epochs=EPOCHS,
                verbose=0,
                validation_batch_size=4,
                callbacks=callbacks,
                **(validation | of_fit),
            )
        except SystemExit as ended:
            code = ended.code
    variables = [*model.variables, *keras_compat.all_variables(model.optimizer)]
    for state in keras_compat.aggregation_states_of(model.optimizer):
        variables += state.rule_state.of_name.values() if state.rule_state else []
    return {
        "rows": np.reshape(list(map(sorted, seen.steps)), [-1, BATCH // strategy.num_workers]),
        **on_replicas(strategy, variables, "variable "),
        **{f"log {name}": values for name, values in model.history.history.items()},
        "epochs": model.history.epoch,
        "said": "".join(str(each.message) for each in caught if each.category is UserWarning),
        "code": code,
    }


def assert_as_unbroken(kind, place, unbroken, killed, resumed):
    """Each step has had the unbroken training's rows once, and the state has the same bits.

    The arguments are results of all workers.
    """
    steps = DATA[kind]("/tmp")[1].get("steps_per_epoch", STEPS)
    epoch, batch, save_freq = PLACES[place]
    done = (epoch + 1) * steps  # when it was backed up
    if isinstance(batch, int):
        done = (epoch * steps + batch) // save_freq * save_freq
    for before, until, after in zip(unbroken, killed, resumed, strict=True):
        rows = np.concatenate([until["rows"][:done], after["rows"]])
        np.testing.assert_array_equal(rows, before["rows"])
        assert_same_state(after, before)


def assert_same_state(one, other):
    """All variables on the local replicas have the same bits."""
    names = [name for name in one if name.startswith("variable ")]
    assert len(names) > 5
    for name in names:
        np.testing.assert_array_equal(one[name], other[name], name)
