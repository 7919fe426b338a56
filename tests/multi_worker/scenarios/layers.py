"""What the workers do for `test_layers.py`: float8, masks, local steps."""

import keras
import numpy as np

from scenarios.basics import compiled, scope, use_rule, weights_of
from tf_adasum import optimizers

ROWS = np.random.default_rng(0).standard_normal([32, 3]).astype("float32")
TARGETS = ROWS.sum(axis=1, keepdims=True)


def fit_with_float8(strategy):
    """The variables of a layer in float8; later rows are larger, and the last batch is one row."""
    use_rule(strategy, "mean")
    keras.utils.set_random_seed(1)
    with scope(strategy):
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(4)])
        model.layers[0].quantize("float8")
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.append(ROWS, ROWS[:1], axis=0) * np.linspace(0.1, 2, len(ROWS) + 1)[:, None]
    model.fit(x, np.ones([33, 4]), batch_size=16, shuffle=False, epochs=2, verbose=0)
    if strategy:
        strategy.check_replicas()
    return {one.path.rpartition("/")[2]: one.numpy() for one in model.trainable_variables}


def moments_of_masked_rows(strategy):
    """The moving moments of a BatchNormalization after one batch, whose second half is masked."""
    rows = np.random.default_rng(2).integers(0, 3, [32, 6, 1]) * ROWS.mean()
    rows[16:] = 0

    def make():
        layers = [keras.layers.Masking(), keras.layers.BatchNormalization(momentum=0.5)]
        layers += [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        return [keras.Input([6, 1]), *layers]

    model = compiled(strategy, make, lambda: keras.optimizers.SGD(0.1))
    use_rule(strategy, "mean")
    model.fit(rows, rows[:, 0], batch_size=32, shuffle=False, verbose=0)
    return weights_of(model)


@keras.saving.register_keras_serializable("tests")
class RunningNorm(keras.layers.Layer):
    """Divide by a number that the forward pass computes from the rows of the replica."""

    def build(self, shape):
        del shape
        self.norm = self.add_weight(shape=(), initializer="ones", trainable=False, name="norm")

    def call(self, inputs, training=False):
        if training:
            self.norm.assign(0.5 * self.norm + keras.ops.max(keras.ops.abs(inputs)))
        return inputs / self.norm


def train_with_local_steps(strategy):
    """Train three local steps at a time; check all weights after each combination.

    Returns:
        After which steps the weights were checked.
    """

    def make():
        inner = keras.layers.SpectralNormalization(keras.layers.Dense(8, "relu"))
        layers = [RunningNorm(), inner, keras.layers.BatchNormalization()]
        return [keras.Input([3]), *layers, keras.layers.Dense(1)]

    def make_optimizer():
        return optimizers.DeltaAdasum(keras.optimizers.Adam(0.1), local_steps=3)

    model = compiled(strategy, make, make_optimizer)
    optimizer = model.optimizer
    checked = []

    def check(*_, **__):
        if optimizer.is_synchronized:
            strategy.check_replicas([v for v in model.weights if "seed" not in v.path])
            checked.append(int(optimizer.iterations.numpy()))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=check)
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 2}
    model.fit(ROWS[:28], TARGETS[:28], callbacks=[callback], **options)
    strategy.check_replicas(model.trainable_variables)
    return {"checked": checked}
