"""What the workers do for `test_layers.py`: added losses, float8, another batch axis."""

import functools

import keras
import numpy as np

from scenarios.basics import message_of, scope, use_rule, weights_of

ROWS = np.random.default_rng(0).standard_normal([32, 3]).astype("float32")
TARGETS = ROWS.sum(axis=1, keepdims=True)


class AddsLoss(keras.layers.Layer):
    """Adds a loss as `kind` says: the value of a function, of an object, or twice half of that."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.loss = kind, keras.losses.MeanSquaredError()

    def call(self, inputs):
        outputs, targets = inputs
        if self.kind == "function":
            self.add_loss(keras.ops.mean(keras.ops.square(targets - outputs)))
        elif self.kind == "object":
            self.add_loss(self.loss(targets, outputs))
        else:
            self.add_loss(2 * (0.5 * self.loss(targets, outputs)))
        return outputs


def fit_with_added_loss(strategy, kind):
    """Two steps with a loss that a layer adds, under the mean."""
    if strategy:
        use_rule(strategy, "mean")
    keras.utils.set_random_seed(1)
    with scope(strategy):
        inputs, targets = keras.layers.Input([3]), keras.layers.Input([1])
        outputs = AddsLoss(kind)([keras.layers.Dense(1)(inputs), targets])
        model = keras.Model([inputs, targets], outputs)
        model.compile(keras.optimizers.SGD(0.1))
    history = model.fit([ROWS, TARGETS], batch_size=16, shuffle=False, verbose=0).history
    return {"loss": history["loss"], **weights_of(model)}


def fit_with_float8(strategy):
    """The variables of a layer in float8; the rows of later replicas are larger."""
    if strategy:
        use_rule(strategy, "mean")
    keras.utils.set_random_seed(1)
    with scope(strategy):
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(4)])
        model.layers[0].quantize("float8")
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = ROWS * np.linspace(0.1, 2, len(ROWS))[:, None]
    model.fit(x, np.ones([32, 4]), batch_size=16, shuffle=False, epochs=2, verbose=0)
    if strategy:
        strategy.check_replicas()
    return {one.path.rpartition("/")[2]: one.numpy() for one in model.trainable_variables}


AXES = {
    "input": ((5, None, 3), False, (5, 12, 3)),
    "output": ((None, 3), True, (8, 3)),
    "a part of fixed length": ((8, None, 3), False, (16, 12, 3)),
    "two of unknown length": ((None, None, 3), False, (5, 12, 3)),
}


def predict_along_axes(strategy):
    """The messages of the errors of `predict` by models with some axis for the batch."""
    messages = {}
    for name, (shape, transposes, rows) in AXES.items():
        with scope(strategy):
            inputs = keras.Input(batch_shape=shape)
            outputs = keras.layers.Dense(2)(inputs)
            model = keras.Model(inputs, keras.ops.transpose(outputs) if transposes else outputs)
        messages[name] = message_of(functools.partial(model.predict, np.ones(rows), 16, verbose=0))
    return messages
