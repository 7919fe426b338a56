"""Which rows each worker trains on, for every way to hand over data and every policy."""

import pathlib
import random
import warnings

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import PyDataset

from scenarios.basics import compiled
from scenarios.keras import RowsByEpoch, SeenRows
from tf_adasum.compat import tensorflow as tensorflow_compat

ROWS, BATCH = 24, 8
X = np.arange(ROWS, dtype="float32")[:, None]

# Of a PyDataset: of twelve batches no order comes twice.
SMALL_BATCH = 2

# The files: as many rows in each, and very different ones.
FILES = {"one": [24], "even": [6, 6, 6, 6], "odd": [12, 2, 10]}


def write_files(strategy, folder):
    """Write every row, its number as text, into a record of the files of each kind."""
    if strategy.rank == 0:
        for kind, sizes in FILES.items():
            for index, rows in enumerate(np.split(np.arange(ROWS), np.cumsum(sizes)[:-1])):
                with tf.io.TFRecordWriter(f"{folder}/{kind}-{index}.tfrecord") as writer:
                    for row in rows:
                        writer.write(str(row).encode())
        pathlib.Path(folder, "rows.txt").write_text("".join(f"{row}\n" for row in range(ROWS)))
    strategy._workers.gather([0])  # wait for the files


class RowBatches(PyDataset):
    """Batches of rows; NumPy shuffles them at the "start", or at the "end" of each epoch."""

    def __init__(self, rows, batch, shuffled="", **options):
        super().__init__(**options)
        self.rows, self.batch, self.shuffled = rows, batch, shuffled
        self.order = np.arange(len(rows))
        if shuffled == "start":
            np.random.shuffle(self.order)

    def __len__(self):
        return len(self.rows) // self.batch

    def __getitem__(self, index):
        rows = self.rows[self.order[index * self.batch :][: self.batch]]
        return rows, rows

    def on_epoch_end(self):
        if self.shuffled == "end":
            np.random.shuffle(self.order)


def pair(text):
    row = tf.strings.to_number(text)[None]
    return row, row


def python_data(case, strategy):
    """Return what `fit` gets in a case of arrays or Python's own iterators; None in others."""
    rank, workers = strategy.rank, strategy.num_workers
    own_rows = X[rank * ROWS // workers :][: ROWS // workers]
    match case:
        case "arrays" | "arrays again":
            return {"x": X, "y": X, "batch_size": BATCH}
        case "own arrays":
            return {"x": own_rows, "y": own_rows, "batch_size": BATCH // workers}
        case "PyDataset":
            return {"x": RowBatches(X, SMALL_BATCH)}
        case "PyDataset with threads":
            return {"x": RowBatches(X, SMALL_BATCH, workers=2)}
        case "PyDataset that shuffles on_epoch_end":
            return {"x": RowBatches(X, SMALL_BATCH, "end"), "shuffle": False}
        case "PyDataset that shuffles at first":
            return {"x": RowBatches(X, SMALL_BATCH, "start"), "shuffle": False}


def dataset_of(kind, strategy, folder):
    """Return a `tf.data.Dataset` of rows."""
    rank, workers = strategy.rank, strategy.num_workers
    tensors = tf.data.Dataset.from_tensor_slices((X, X))
    records = tf.data.TFRecordDataset

    def interleaved(kind, **options):
        names = tf.data.Dataset.list_files(f"{folder}/{kind}-*")
        return names.interleave(records, cycle_length=2, **options).map(pair)

    match kind:
        case "tensors":
            return tensors
        case "shuffled tensors":
            return tensors.shuffle(ROWS)
        case "tensors shuffled by own seeds":
            return tensors.shuffle(ROWS, seed=rank + 1)
        case "tensors in a shard" | "replaced tensors in a shard":
            return tensors.shard(workers, rank)
        case "more rows on worker 0":
            own = X[2 * BATCH * rank :][: 2 * BATCH]
            return tf.data.Dataset.from_tensor_slices((own, own)).filter(lambda *row: True)
        case "shuffled, cached, repeated":
            return tensors.cache().shuffle(ROWS).repeat()
        case "mapped in any order":
            return tensors.map(lambda x, y: (x, y), num_parallel_calls=4)
        case "text":
            return tf.data.TextLineDataset(f"{folder}/rows.txt").map(pair)
        case "listed even":
            return interleaved("even")
        case "listed, shuffled":
            return interleaved("even", num_parallel_calls=2).shuffle(ROWS)
        case "odd of known length":
            return interleaved("odd")
    name, *parts = kind.split(" ", 1)
    rows = records([f"{folder}/{name}-{i}.tfrecord" for i in range(len(FILES[name]))]).map(pair)
    return rows.take(7).concatenate(rows.skip(7)) if parts else rows


# A dataset that each epoch replaces.
REPLACED = "replaced tensors in a shard OFF"


def data_of(case, strategy, folder):
    """Return what `fit` gets in a case: some words, of which the last one may be a policy."""
    if data := python_data(case, strategy):
        return data
    kind, _, policy = case.rpartition(" ")
    if policy not in ("AUTO", "FILE", "DATA", "OFF"):
        kind, policy = case, "AUTO"
    rows = dataset_of(kind, strategy, folder).batch(BATCH)
    if kind == "odd of known length":
        rows = rows.apply(tf.data.experimental.assert_cardinality(ROWS // BATCH))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    if kind == "mapped in any order":
        options.deterministic = False
    rows = rows.with_options(options)
    if case == REPLACED:
        rows = tensorflow_compat.replaceable_dataset(rows, lambda rows=rows: rows)
    return {"x": rows} | ({"steps_per_epoch": 3} if "repeated" in kind else {})


def rows_of_cases(strategy, cases, folder, predicted=(), seeds="none"):
    """Two epochs of each case: the rows that this worker has seen, warnings, an error's message.

    Python's and NumPy's generators have another state on each worker. The model gives twice the
    row back.

    Args:
        strategy: the workers' strategy.
        cases: see `data_of`.
        folder: where files are written.
        predicted: cases for `evaluate` and `predict`.
        seeds: "none", "same", or "different" global seeds on the workers.
    """
    write_files(strategy, folder)
    seen = SeenRows()
    layers = [keras.layers.Input([1]), seen, keras.layers.Dense(1)]
    model = compiled(strategy, lambda: layers, lambda: keras.optimizers.SGD(0.0), "mae")
    model.set_weights([np.full([1, 1], 2.0), np.zeros(1)])
    result = {}
    for case in cases:
        tf.random.set_seed({"none": None, "same": 5, "different": strategy.rank}[seeds])
        random.seed(strategy.rank)
        np.random.seed(strategy.rank)
        recorder, message = RowsByEpoch(seen), ""
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
    tf.random.set_seed(None)
    for case in predicted:
        data = data_of(case, strategy, folder)["x"]
        result[f"{case}/loss"] = model.evaluate(data, verbose=0)
        result[f"{case}/predicted"] = model.predict(data, verbose=0)[:, 0] / 2
    return {**result, "X": X}
