"""Two variables with given values, and small models."""

import keras
import numpy as np

from support import keras_versions

SHAPES = [(4, 3), (5,)]


def values_of(seed):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype("float32") for shape in SHAPES]


def variables_of():
    return [keras_versions.Variable(value, name=f"v{i}") for i, value in enumerate(values_of(0))]


def assert_equal(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def model_of(optimizer, **options):
    """A model of three features, whose weights are always the same."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([3]), *layers])
    model.compile(optimizer, "mse", **options)
    return model


def linear(strategy, optimizer="sgd", layers=(), features=3, cls=keras.Sequential, **options):
    """A model that begins at zero; `optimizer` may be a function that makes one in the scope."""
    with strategy.scope():
        dense = keras.layers.Dense(1, kernel_initializer="zeros")
        model = cls([keras.Input([features]), *layers, dense])
        optimizer = optimizer() if callable(optimizer) else optimizer
        model.compile(optimizer, **{"loss": "mse", **options})
    return model
