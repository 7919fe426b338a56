"""Models that are not in the table of `one_device`."""

import keras
import tensorflow as tf

from scenarios.basics import SGD, scope, use_rule, weights_of
from scenarios.one_device import BATCH, FEATURES, AddingLayer, build, data_of


def fit(strategy, kind):
    """Train on batches of 8 rows, of which the last one has fewer."""
    use_rule(strategy, "mean")
    # Another seed on each worker: the weights of worker 0 count.
    keras.utils.set_random_seed(1 + (strategy.rank if strategy else 0))
    x, y, _ = data_of(*DATA.get(kind, ("built-in", 5)))
    if kind == "masked moments":
        x[20:24] = 0  # all rows of a replica
    with scope(strategy):
        model, loss, options = KINDS[kind]()
        model.compile(SGD(0.02, momentum=0.9), loss, **options)
    if kind == "two outputs":
        y = {"a": y, "b": -y}
    if kind == "ragged":
        x = tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), [FEATURES, 1, 7] * 12 + [4])
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    # One row: the first call gives some replicas none.
    first = {"first": model.predict(x[:1], verbose=0)} if kind == "recurrent" else {}
    logs = {"logs": keras.tree.flatten(model.fit(data, epochs=2, verbose=0).history)}
    if kind == "frozen":
        model.layers[1].trainable = False
        model.compile(SGD(0.02), loss)
        model.fit(data, verbose=0)
    evaluated = {"evaluated": model.evaluate(data, verbose=0)}
    return {**logs, **first, **evaluated, **weights_of(model)}


def compiled(reduction, outputs="built-in"):
    """Return what XLA compiles: a model, its loss, and options of `compile`."""
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    loss = {"a": loss, "b": "mae"} if outputs == "two outputs" else loss
    return build(outputs), loss, {"jit_compile": True}


def synchronized(loss="mse", masked=False, **options):
    inputs = keras.Input([5, FEATURES] if masked else [FEATURES])
    hidden = keras.layers.Masking()(inputs) if masked else inputs
    normalized = keras.layers.BatchNormalization(synchronized=True)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(normalized))
    return model, loss, {"metrics": ["mae"], **options}


def recurrent():
    layers = [keras.layers.Reshape([FEATURES, 1]), keras.layers.LSTM(3), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input([FEATURES]), *layers]), "mse", {}


def images():
    layers = keras.layers
    hidden = [
        *(layers.Dense(200), layers.Reshape([10, 10, 2])),
        # Without rows, TensorFlow's fused kernel would return the shape of its inputs.
        layers.Conv2D(4, 3, activation="relu"),
        *(layers.MaxPooling2D(), layers.DepthwiseConv2D(3, padding="same")),
        layers.SeparableConv2D(4, 3, padding="same"),
        *(layers.Conv2DTranspose(4, 2, strides=2), layers.AveragePooling2D(2)),
        *(layers.Reshape([16, 4]), layers.Conv1D(4, 3, strides=2)),
        getattr(layers, "AdaptiveMaxPooling1D", layers.MaxPooling1D)(3),  # Keras 3.11 has none
        *(layers.Flatten(), layers.Dense(1)),
    ]
    return keras.Sequential([keras.Input([FEATURES]), *hidden]), "mse", {}


class OwnLosses(keras.Model):
    """Reads the losses of layers after another loss, for which the replicas exchange values."""

    def train_step(self, data):
        x, y = data
        summed = keras.losses.MeanSquaredError(reduction="sum")
        with tf.GradientTape() as tape:
            loss = summed(y, self(x, training=True)) + sum(self.losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def own_losses():
    inputs = keras.Input([FEATURES])
    outputs = AddingLayer()(keras.layers.Dense(3, "tanh")(inputs))
    model = OwnLosses(inputs, keras.layers.Dense(1)(outputs))
    return model, None, {"jit_compile": True}  # an own step is not compiled on replicas


class OfRagged(keras.Model):
    """A model of rows of different lengths, which Keras cannot build without them."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs.to_tensor(shape=[None, 7]))


class ResultOfMixin:
    """A class that is no metric and has `result`."""

    def result(self):
        return {"largest": self.largest + 0.0, "smallest": self.smallest + 0.0}


class Largest(ResultOfMixin, keras.metrics.Metric):
    """Keeps the largest and the smallest error."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(name="largest", initializer="zeros")
        self.smallest = self.add_weight(name="smallest", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = y_true - y_pred
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(error)))
        self.smallest.assign(tf.minimum(self.smallest, tf.reduce_min(error)))


class OtherKeys(keras.Model):
    """A model whose logs have keys that no metric of the model has, and others too few.

    With AUC as a metric, the mean of the replicas' results is not the result over all rows.
    """

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        own = super().compute_metrics(x, y, y_pred, sample_weight)
        precision, recall = own["precision"], own["recall"]
        f1 = 2 * precision * recall / (precision + recall)
        others = {"area": own["auc"], "parts": {"f1": f1}, "of_batch": tf.reduce_mean(y_pred)}
        if self.run_eagerly:  # eager code does not show that it keeps a maximum
            return {"auc": own["auc"], "twice": 2 * own["count"], **others}
        return {**own, **others, **self.largest(y, y_pred)}

    def test_step(self, data):
        return {"auc": super().test_step(data)["auc"]}


def other_keys(**options):
    inputs = keras.Input([FEATURES])
    model = OtherKeys(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
    model.largest = Largest()
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
    metrics += [keras.metrics.Recall(name="recall"), keras.metrics.FalsePositives(name="count")]
    return model, "mse", {"metrics": metrics, **options}


class TwoOptimizers(keras.Model):
    """Two networks with an optimizer each, and an average of weights; the first step builds them.

    Nothing depends on the spare layer, and the model cannot be called.
    """

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(2)])
        self.head, self.spare = keras.layers.Dense(1), keras.layers.Dense(5)
        self.spare.build([None, FEATURES])
        self.average = self.add_weight(shape=[2, 1], initializer="zeros", trainable=False)

    def compile(self, *arguments, **options):
        super().compile(*arguments, **options)
        self.of_encoder = keras.optimizers.Adam(0.01, epsilon=1e-3)

    @tf.function  # needless, but some programs have it
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.encoder(x) - y) ** 2)
        weights = self.encoder.trainable_weights + self.spare.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.of_encoder.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self.head(self.encoder(x)))
        weights = self.head.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.average.assign(0.8 * self.average + 0.2 * self.head.kernel)
        return {"loss": loss}

    def test_step(self, data):
        x, y = data
        return {"loss": self.compute_loss(y=y, y_pred=self.head(self.encoder(x)))}


# What is trained on: of `data_of`. A last batch of one row leaves a replica without rows.
DATA = {
    "masked": ("masked", 5),
    "masked moments": ("masked", 5),
    "images": ("built-in", 1),
    "other keys": ("class weights", BATCH),
    "other keys in executions": ("class weights", BATCH),
    "other keys eagerly": ("class weights", BATCH),
}
SUM = keras.losses.MeanSquaredError(reduction="sum")
KINDS = {
    "sum": lambda: compiled("sum"),
    "none": lambda: compiled("none"),
    "two outputs": lambda: compiled("sum_over_batch_size", "two outputs"),
    "masked": lambda: compiled("sum_over_batch_size", "masked"),
    "synchronized": synchronized,
    "eagerly": lambda: synchronized(SUM, run_eagerly=True),
    "executions": lambda: synchronized(steps_per_execution=2),
    "more executions than steps": lambda: synchronized(steps_per_execution=10),
    "not compiled": lambda: synchronized(jit_compile=True),
    "masked moments": lambda: synchronized(masked=True),
    "other keys": other_keys,
    "other keys in executions": lambda: other_keys(steps_per_execution=2),
    "other keys eagerly": lambda: other_keys(run_eagerly=True),
    "two optimizers": lambda: (TwoOptimizers(), "mse", {}),
    "recurrent": recurrent,
    "images": images,
    "frozen": lambda: (build("built-in"), "mse", {}),
    "own losses": own_losses,
    "extremes": lambda: (build("built-in"), "mse", {"metrics": [Largest()]}),
    "ragged": lambda: (OfRagged(), "mse", {}),
}
