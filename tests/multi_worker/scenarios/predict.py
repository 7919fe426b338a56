"""What workers do for test_predict.py: `predict`, `evaluate` and the `..._on_batch` methods.

Every function takes the strategy first; `None` is one process without any.
"""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import build_mlp, compiled, random_data, scope, weights_of


def rows_from(first, count):
    """Rows that hold their own numbers, as [count, 1]."""
    return np.arange(first, first + count, dtype="float32")[:, None]


def generate(strategy):
    """The outputs of a stateful model whose batches have one row, one token at a time."""
    keras.utils.set_random_seed(1)
    with scope(strategy):
        layers = [keras.layers.Embedding(5, 3), keras.layers.LSTM(4, stateful=True)]
        model = keras.Sequential([keras.Input(batch_shape=(1, None)), *layers])
    outputs = [model.predict(np.array([[token]]), verbose=0) for token in [1, 2, 1, 2]]
    return {"outputs": outputs}


def build_two_outputs():
    """A model that gives its input back, and twice its input in three columns."""
    constant = keras.initializers.Constant
    row = keras.layers.Dense(1, use_bias=False, kernel_initializer=constant(1))
    twice = keras.layers.Dense(3, use_bias=False, kernel_initializer=constant(2))
    inputs = keras.layers.Input([1])
    return keras.Model(inputs, {"row": row(inputs), "twice": twice(inputs)})


def predict(strategy, arrays, datasets, on_batch=()):
    """Both outputs for arrays and batched datasets of "rows/batch size", for known rows.

    `on_batch` are numbers of rows for `predict_on_batch`.
    """
    with scope(strategy):
        model = build_two_outputs()
    found = {}
    for case in arrays:
        rows, batch_size = map(int, case.split("/"))
        found[case] = model.predict(rows_from(1, rows), batch_size=batch_size, verbose=0)
    for case in datasets:
        rows, batch_size = map(int, case.split("/"))
        dataset = tf.data.Dataset.from_tensor_slices(rows_from(1, rows)).batch(batch_size)
        unknown = dataset.filter(lambda batch: tf.reduce_all(batch > 0))
        found[f"dataset {case}"] = model.predict(dataset, verbose=0)
        found[f"dataset of unknown length {case}"] = model.predict(unknown, verbose=0)
    for rows in on_batch:
        found[f"on batch {rows}"] = model.predict_on_batch(rows_from(1, rows))
    results = {f"rows of {case}": each["row"] for case, each in found.items()}
    return results | {f"twice of {case}": each["twice"] / 2 for case, each in found.items()}


def train(strategy, way, on_batch):
    """The weights after three updates by one batch, and an evaluation, with weights of the rows."""
    x, y = random_data(15)
    y, weights = (y > 0).astype("float32"), np.random.default_rng(2).uniform(0.1, 2, 15)
    weighing = {way: {"sample_weight": weights, "class_weight": {0: 0.5, 1: 3.0}}[way]}
    model = compiled(strategy, build_mlp, metrics=["mae"], weighted_metrics=["mse"])
    if on_batch:
        for _ in range(3):
            model.train_on_batch(x, y, **weighing)
        model.reset_metrics()  # an older Keras 3 does not
        logs = model.test_on_batch(x, y, weights, return_dict=True)
    else:
        model.fit(x, y, batch_size=15, epochs=3, shuffle=False, verbose=0, **weighing)
        options = {"batch_size": 11, "verbose": 0, "return_dict": True}
        logs = model.evaluate(x, y, sample_weight=weights, **options)
    return {**logs, **weights_of(model)}
