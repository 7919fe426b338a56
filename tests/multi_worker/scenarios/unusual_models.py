"""Models that are not in the table of `one_device`."""

import keras
import tensorflow as tf

from scenarios.basics import SGD, scope, use_rule, weights_of
from scenarios.one_device import BATCH, FEATURES, AddingLayer, build, data_of


def fit(strategy, kind):
    """Train on batches of 8 rows, of which the last one has 5."""
    if strategy:
        use_rule(strategy, "mean")
    keras.utils.set_random_seed(1)
    x, y, _ = data_of("built-in", 5)
    with scope(strategy):
        model, loss, options = KINDS[kind]()
        model.compile(SGD(0.02, momentum=0.9), loss, **options)
    if kind == "two outputs":
        y = {"a": y, "b": -y}
    if kind == "ragged":
        x = tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), [FEATURES, 1, 7] * 12 + [4])
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    history = model.fit(data, epochs=2, verbose=0).history
    return {**history, **weights_of(model)}


def compiled(reduction, outputs="built-in"):
    """Return what XLA compiles: a model, its loss, and options of `compile`."""
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    loss = {"a": loss, "b": "mae"} if outputs == "two outputs" else loss
    return build(outputs), loss, {"jit_compile": True}


def synchronized():
    inputs = keras.Input([FEATURES])
    normalized = keras.layers.BatchNormalization(synchronized=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(normalized)), "mse", {}


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
    return OwnLosses(inputs, keras.layers.Dense(1)(outputs)), None, {}


class OfRagged(keras.Model):
    """A model of rows of different lengths, which Keras cannot build without them."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs.to_tensor(shape=[None, 7]))


KINDS = {
    "sum": lambda: compiled("sum"),
    "none": lambda: compiled("none"),
    "two outputs": lambda: compiled("sum_over_batch_size", "two outputs"),
    "synchronized": synchronized,
    "own losses": own_losses,
    "ragged": lambda: (OfRagged(), "mse", {}),
}
