"""Which rows each worker trains on, for every way to hand over data and every policy."""

import os
import random
import warnings

import keras
import numpy as np
import tensorflow as tf
from support.stacks import PyDataset

from scenarios.basics import use_rule
from scenarios.keras import SeenRows, scope, worker_of

ROWS, BATCH = 24, 8
X = np.arange(ROWS, dtype="float32")[:, None]

# Of a PyDataset: of twelve batches no order comes twice.
SMALL_BATCH = 2

# The files: as many rows in each, and very different ones.
FILES = {"one": [24], "even": [6, 6, 6, 6], "odd": [12, 2, 10]}


def write_files(folder):
    """Write every row, its number as text, into a record of the files of each kind."""
    for kind, sizes in FILES.items():
        numbers = iter(range(ROWS))
        for index, size in enumerate(sizes):
            with tf.io.TFRecordWriter(os.path.join(folder, f"{kind}-{index}.tfrecord")) as writer:
                for _ in range(size):
                    writer.write(str(next(numbers)).encode())
    with open(os.path.join(folder, "rows.txt"), "w") as file:
        file.writelines(f"{row}\n" for row in range(ROWS))


class Batches(PyDataset):
    """Batches of the rows, in the order 0, 1, … or one of its own.

    Args:
        own: "" or when it makes an order with NumPy's global generator, or one of its own: "end",
            "init", "generator".
        augmented: whether noise is added to the inputs, another one on each worker.
    """

    def __init__(self, own="", augmented=False, **options):
        super().__init__(**options)
        self.order = np.arange(ROWS)
        self.own, self.augmented = own, augmented
        self.generator = np.random.default_rng()
        if own == "init":
            np.random.shuffle(self.order)

    def __len__(self):
        return ROWS // SMALL_BATCH

    def __getitem__(self, index):
        rows = X[self.order[index * SMALL_BATCH : (index + 1) * SMALL_BATCH]]
        noise = self.generator.uniform(0.1, 0.4, rows.shape) if self.augmented else 0.0
        return (rows + noise).astype("float32"), rows

    def on_epoch_end(self):
        if self.own == "end":
            self.order = np.random.permutation(ROWS)
        elif self.own == "generator":
            self.generator.shuffle(self.order)


def batches():
    """A Python generator of all batches."""
    for start in range(0, ROWS, BATCH):
        yield X[start : start + BATCH], X[start : start + BATCH]


def pair(text):
    row = tf.strings.to_number(text)[None]
    return row, row


def with_policy(dataset, policy, deterministic=None):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    if deterministic is not None:
        options.deterministic = deterministic
    return dataset.with_options(options)


def tensors(x=X):
    return tf.data.Dataset.from_tensor_slices((x, x))


def sharded(context):
    """Make the dataset of one worker, for `distribute_datasets_from_function`."""
    rows = tensors().shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(ROWS)
    return rows.batch(context.get_per_replica_batch_size(BATCH))


def data_of(case, strategy, folder):
    """Return what `fit` gets in a case: some words, of which the last one may be a policy."""
    kind, _, policy = case.rpartition(" ")
    if policy not in ("AUTO", "FILE", "DATA", "OFF"):
        kind, policy = case, None
    rank, workers = strategy.workers.rank, strategy.workers.count
    own_rows = X[rank * ROWS // workers :][: ROWS // workers]

    def files(kind):
        names = sorted(name for name in os.listdir(folder) if name.startswith(kind))
        return [os.path.join(folder, name) for name in names]

    def records(names):
        return tf.data.TFRecordDataset(names).map(pair)

    def listed(kind):
        return tf.data.Dataset.list_files(os.path.join(folder, f"{kind}*"))

    def interleaved(names, **options):
        return names.interleave(tf.data.TFRecordDataset, cycle_length=2, **options).map(pair)

    match kind:
        case "arrays":
            return {"x": X, "y": X, "batch_size": BATCH}
        case "own arrays":
            return {"x": own_rows, "y": own_rows, "batch_size": BATCH // workers}
        case "noisy arrays":
            noise = np.random.default_rng(rank).uniform(0.1, 0.4, X.shape)
            return {"x": (X + noise).astype("float32"), "y": X, "batch_size": BATCH}
        case "PyDataset":
            return {"x": Batches()}
        case "PyDataset with threads":
            return {"x": Batches(workers=2)}
        case "PyDataset with processes":
            return {"x": Batches(workers=2, use_multiprocessing=True)}
        case "PyDataset, augmented":
            return {"x": Batches(augmented=True)}
        case "PyDataset that shuffles on_epoch_end":
            return {"x": Batches("end"), "shuffle": False}
        case "PyDataset that shuffles at first":
            return {"x": Batches("init"), "shuffle": False}
        case "PyDataset with its own generator":
            return {"x": Batches("generator"), "shuffle": False}
        case "generator":
            return {"x": batches(), "epochs": 1}
        case "generator of own rows":
            return {"x": ((own_rows, own_rows) for _ in range(2)), "epochs": 1}
        case "from function":
            return {"x": strategy.distribute_datasets_from_function(sharded)}
    match kind:
        case "tensors":
            rows = tensors()
        case "shuffled tensors":
            rows = tensors().shuffle(ROWS)
        case "tensors shuffled by own seeds":
            rows = tensors().shuffle(ROWS, seed=rank + 1)
        case "tensors in a shard":
            rows = tensors().shard(workers, rank)
        case "own tensors":
            rows = tensors(own_rows)
        case "shuffled, cached, repeated":
            rows = tensors().cache().shuffle(ROWS).repeat()
        case "shuffled before cache":
            rows = tensors().shuffle(ROWS).cache()
        case "shuffled batches":
            rows = tensors().batch(2).shuffle(ROWS).unbatch()
        case "mapped in any order":
            rows = tensors().map(lambda x, y: (x, y), num_parallel_calls=4)
        case "files in other orders":
            rows = records(files("even")[:: 1 - 2 * (rank == 0)])
        case "text":
            rows = tf.data.TextLineDataset(os.path.join(folder, "rows.txt")).map(pair)
        case "listed even" | "listed odd" | "listed one":
            rows = interleaved(listed(kind.removeprefix("listed ")))
        case "listed, shuffled":
            rows = interleaved(listed("even"), num_parallel_calls=2).shuffle(ROWS)
        case "odd in two parts":
            rows = records(files("odd"))
            rows = rows.take(7).concatenate(rows.skip(7))
        case "odd of known length":
            rows = interleaved(listed("odd"))
        case _:
            rows = records(files(kind))
    rows = rows.batch(BATCH)
    if kind == "odd of known length":
        rows = rows.apply(tf.data.experimental.assert_cardinality(ROWS // BATCH))
    if policy:
        in_any_order = False if kind == "mapped in any order" else None
        rows = with_policy(rows, policy, in_any_order)
    return {"x": rows, **({"steps_per_epoch": 3} if "repeated" in kind else {})}


def model_of(strategy):
    with scope(strategy):
        seen = SeenRows()
        model = keras.Sequential([keras.layers.Input([1]), seen, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model, seen


class NextEpoch(keras.callbacks.Callback):
    """Keeps the rows of each epoch."""

    def __init__(self, seen):
        super().__init__()
        self.seen, self.epochs = seen, []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(list(self.seen.rows))
        self.seen.rows.clear()


def rows_of_cases(strategy, cases, folder, seed=None):
    """Two epochs of each case: the rows that this worker has seen, warnings, an error's message.

    Args:
        strategy: the workers' strategy.
        cases: see `data_of`.
        folder: where files are written.
        seed: of `keras.utils.set_random_seed`, before each case; None for none, and other states
            of Python's and NumPy's generators on each worker.
    """
    use_rule(strategy, "adasum")
    if worker_of(strategy) == 0:
        write_files(folder)
    strategy.workers.gather([0])  # wait for the files
    model, seen = model_of(strategy)
    result = {}
    for case in cases:
        tf.random.set_seed(None)
        random.seed(worker_of(strategy))
        np.random.seed(worker_of(strategy))
        if seed is not None:
            keras.utils.set_random_seed(seed)
        recorder, message = NextEpoch(seen), ""
        seen.rows.clear()
        before = random.getstate(), np.random.get_state()[1].tolist()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                options = {"epochs": 2, "verbose": 0, **data_of(case, strategy, folder)}
                model.fit(callbacks=[recorder], **options)
            except ValueError as error:
                message = str(error)
        result |= {f"{case}/{epoch}": rows for epoch, rows in enumerate(recorder.epochs)}
        result[f"{case}/warned"] = " ".join(str(each.message) for each in warned)
        result[f"{case}/error"] = message
        after = random.getstate(), np.random.get_state()[1].tolist()
        result[f"{case}/untouched"] = before == after
    tf.random.set_seed(None)
    return {**result, "X": X}


def predictions(strategy, cases, folder):
    """What `predict` returns, and the mean loss of `evaluate`, for rows that predict themselves."""
    if worker_of(strategy) == 0:
        write_files(folder)
    strategy.workers.gather([0])
    with scope(strategy):
        model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mae")
    model.set_weights([np.full([1, 1], 2.0), np.zeros(1)])
    result = {}
    for case in cases:
        data = data_of(case, strategy, folder)["x"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result[f"{case}/loss"] = model.evaluate(data, verbose=0)
            result[f"{case}/rows"] = model.predict(data, verbose=0)[:, 0] / 2
    return result
