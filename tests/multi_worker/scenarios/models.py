"""What workers do for test_models.py: a model of many layers, inputs of several kinds.

Every function takes the strategy first; `None` is one process without any.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from support.keras_versions import PyDataset

from scenarios.basics import build_mlp, random_data, scope, use_rule, weights_of


def train_multi_task(strategy):
    """Two texts and an image, shared and frozen layers, two outputs with their own metrics."""
    if strategy:
        use_rule(strategy, "mean")
    keras.utils.set_random_seed(3)
    random = np.random.default_rng(3)
    x = {name: random.integers(20, size=[96, 8]) for name in ("left", "right")}
    x["image"] = random.standard_normal([96, 8, 8, 1]).astype("float32")
    total = np.sin(x["left"] + x["right"]).sum(axis=1, keepdims=True).astype("float32")
    with scope(strategy):
        inputs = {
            "left": layers.Input([8], dtype="int32", name="left"),
            "right": layers.Input([8], dtype="int32", name="right"),
            "image": layers.Input([8, 8, 1], name="image"),
        }
        embedding, attention = layers.Embedding(20, 8), layers.MultiHeadAttention(2, 4)

        def encoded(tokens):
            embedded = embedding(tokens)
            attended = layers.Add()([embedded, attention(embedded, embedded)])
            return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(attended))

        image = layers.Conv2D(4, 3, use_bias=False)(inputs["image"])
        image = layers.ReLU()(layers.BatchNormalization(synchronized=True)(image))
        parts = [encoded(inputs["left"]), encoded(inputs["right"]), layers.Flatten()(image)]
        hidden = layers.Concatenate()(parts)
        frozen = layers.Dense(12, activation="tanh", trainable=False)
        hidden = layers.Concatenate()([hidden, frozen(hidden)])
        outputs = {
            "total": layers.Dense(1, name="total")(hidden),
            "sign": layers.Dense(1, activation="sigmoid", name="sign")(hidden),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizer=keras.optimizers.SGD(0.05),
            loss={"total": "mse", "sign": "binary_crossentropy"},
            loss_weights={"total": 0.2, "sign": 2.0},
            metrics={"total": ["mae"], "sign": ["accuracy"]},
        )
    y = {"total": total, "sign": (total > 0).astype("float32")}
    history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history
    if strategy:
        strategy.check_replicas()
    return {**history, **weights_of(model)}


BATCH_SIZE = 16
CLASS_WEIGHT = {0: 0.5, 1: 3.0}


def aligned(array):
    """Return a copy at a multiple of 64 bytes: TensorFlow reads such memory without copying."""
    memory = np.zeros(array.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Batches(PyDataset):
    """The batches of arrays, as views of them."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = [aligned(array) for array in arrays]

    def __len__(self):
        return -(-len(self.arrays[0]) // BATCH_SIZE)

    def __getitem__(self, index):
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return tuple(array[rows] for array in self.arrays)


def fit_arguments(strategy, kind, x, y):
    """What `fit` gets: the same batches, in inputs of several kinds."""
    weight = np.where(y[:, 0] > 0, CLASS_WEIGHT[1], CLASS_WEIGHT[0]).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    weighted = tf.data.Dataset.from_tensor_slices((x, y, weight))
    arrays = {"x": x, "y": y, "batch_size": BATCH_SIZE}

    def own_batches(context):
        batches = rows.batch(context.get_per_replica_batch_size(BATCH_SIZE))
        batches = batches.shard(context.num_input_pipelines, context.input_pipeline_id)
        return batches.repeat() if kind.startswith("endless") else batches

    match kind:
        case "arrays":
            return arrays
        case "PyDataset":
            return {"x": Batches(x, y)}
        case "dataset":
            return {"x": rows.batch(BATCH_SIZE)}
        case "dataset of unknown length":
            return {"x": rows.filter(lambda x, y: True).batch(BATCH_SIZE)}
        case "dataset per worker":
            return {"x": strategy.distribute_datasets_from_function(own_batches)}
        case "endless dataset per worker":
            endless = strategy.distribute_datasets_from_function(own_batches)
            return {"x": endless, "steps_per_epoch": len(x) // BATCH_SIZE}
        case "sample_weight":
            return {**arrays, "sample_weight": weight}
        case "dataset with sample_weight":
            return {"x": weighted.batch(BATCH_SIZE)}
        case "dataset with class_weight":
            return {"x": rows.batch(BATCH_SIZE), "class_weight": CLASS_WEIGHT}


def fit_inputs(strategy, rows, kinds):
    """For each kind of input the logs and weights after two epochs of the same batches."""
    x, y = random_data(rows)
    y = (y > 0).astype("float32")
    with scope(strategy):
        model = build_mlp()
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    start, found = model.get_weights(), {}
    for kind in kinds:
        model.set_weights(start)
        arguments = fit_arguments(strategy, kind, x, y)
        history = model.fit(**arguments, epochs=2, shuffle=False, verbose=0).history
        results = {**history, **weights_of(model)}
        found |= {f"{kind}/{name}": value for name, value in results.items()}
    return found
