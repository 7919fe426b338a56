"""`compile(jit_compile=True)`: what XLA compiles, and that it changes nothing."""

import warnings

import keras
import numpy as np
from support.keras_versions import LossScaleOptimizer

from scenarios.basics import compiled, use_rule, weights_of
from tf_adasum import optimizers
from tf_adasum.compat import tensorflow as tensorflow_compat

WORDS, LENGTH = 12, 5


class Noting(keras.layers.Layer):
    """Passes its input on, and notes whether XLA compiles the training and the rest."""

    def __init__(self):
        super().__init__()
        self.compiled = {True: set(), False: set()}

    def call(self, x, training=False):
        self.compiled[training].add(tensorflow_compat.compiles_with_xla())
        return x

    def compute_mask(self, x, mask=None):
        return mask


class NotingSGD(keras.optimizers.SGD):
    """Notes which gradients are sparse."""

    def apply(self, grads, trainable_variables=None):
        self.are_sparse = [hasattr(gradient, "indices") for gradient in grads]
        super().apply(grads, trainable_variables)


def build(kind, noting):
    """A model with two outputs, one of them masked, with a penalty and statistics."""
    words = keras.Input([LENGTH], dtype="int32")
    masks = kind != "unmasked"
    embedded = noting(keras.layers.Embedding(WORDS, 4, mask_zero=masks)(words))
    scores = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1), name="scores")
    # XLA compiles no GlobalAveragePooling1D of masked rows where there are none, up to Keras 3.14.
    flat = keras.ops.mean(embedded, axis=1)
    flat = keras.layers.BatchNormalization(momentum=0.5)(flat)
    flat = keras.layers.ActivityRegularization(0.1)(flat)
    outputs = {"scores": scores(embedded), "total": keras.layers.Dense(1, name="total")(flat)}
    return keras.Model(words, outputs)


OPTIMIZERS = {
    "momentum": lambda: NotingSGD(0.05, momentum=0.9),
    "accumulating": lambda: NotingSGD(0.05, gradient_accumulation_steps=2),
    "scaled": lambda: LossScaleOptimizer(NotingSGD(0.05), initial_scale=64.0),
    "delta of 2": lambda: optimizers.DeltaAdasum(NotingSGD(0.05), local_steps=2),
}


def fit(strategy, jit_compile, kind="plain", optimizer="momentum", rule="adasum", **options):
    """Two epochs of batches of 8 rows for each replica, and one of a single row."""
    use_rule(strategy, rule)
    batch = 8 * strategy.num_replicas_in_sync
    random = np.random.default_rng(0)
    x = random.integers(0, WORDS, [2 * batch + 1, LENGTH])
    y = {
        "scores": random.standard_normal([len(x), LENGTH, 1]),
        "total": random.standard_normal([len(x), 1]),
    }
    weights = {"scores": random.random([len(x), LENGTH]), "total": random.random(len(x))}
    noting, losses = Noting(), dict.fromkeys(y, "mse")
    options |= {"weighted_metrics": losses, "jit_compile": jit_compile}
    model = compiled(
        strategy, lambda: build(kind, noting), OPTIMIZERS[optimizer], losses, **options
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = {"x": x, "y": y, "sample_weight": weights, "batch_size": batch, "verbose": 0}
        history = model.fit(**data, epochs=2, validation_data=(x, y, weights)).history
        predicted = model.predict(x, batch_size=batch, verbose=0)
    strategy.check_replicas(model.variables)
    own = model.optimizer
    while hasattr(own, "inner_optimizer"):
        own = own.inner_optimizer
    return {
        **{f"history {name}": values for name, values in history.items()},
        **{f"predicted {name}": values for name, values in predicted.items()},
        **weights_of(model),
        "training compiled": list(noting.compiled[True]),
        "the rest compiled": list(noting.compiled[False]),
        "are sparse": own.are_sparse,
        "warnings": [str(warning.message) for warning in caught if "XLA" in str(warning.message)],
    }
