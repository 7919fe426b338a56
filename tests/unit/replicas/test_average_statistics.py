"""Which weights are averaged over the replicas. That they are is shown by tests with workers."""

import gc
import weakref

import keras
import numpy as np
import pytest

import tf_adasum
from tf_adasum.replicas import average_statistics


@pytest.fixture(scope="module")
def strategy():
    return tf_adasum.AdasumMirroredStrategy(["CPU:0"])


def build(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([3]),
                keras.layers.Dense(2),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5),  # an integer that is no weight to train
            ]
        )
    model.layers[0].trainable = False
    return model


def averaged(strategy, model):
    """The variables whose average is taken."""
    taken = []

    def averaging(strategy, variables):
        taken.extend(variables)
        return lambda: None

    original, average_statistics._averaging = average_statistics._averaging, averaging
    try:
        average_statistics.average(strategy, model)
    finally:
        average_statistics._averaging = original
    return taken


def test_moving_statistics_are_averaged_and_frozen_weights_are_not(strategy):
    model = build(strategy)
    norm = model.layers[1]
    taken = averaged(strategy, model)
    assert [id(v) for v in taken] == [id(norm.moving_mean), id(norm.moving_variance)]


def test_a_model_without_statistics_costs_nothing(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
    assert averaged(strategy, model) == []


def test_equal_values_keep_their_bits_and_what_is_not_finite_stays(strategy):
    model = build(strategy)
    mean, variance = model.layers[1].moving_mean, model.layers[1].moving_variance
    mean.assign([0.1, np.nan])
    variance.assign([np.inf, 1e-30])
    before = [mean.numpy(), variance.numpy()]
    average_statistics.average(strategy, model)
    np.testing.assert_array_equal([mean.numpy(), variance.numpy()], before)


def average_twice(strategy):
    model = build(strategy)
    average_statistics.average(strategy, model)
    _, first = average_statistics._averages[model]
    average_statistics.average(strategy, model)
    assert average_statistics._averages[model][1] is first
    assert first.experimental_get_tracing_count() == 1
    return weakref.ref(model)


def test_a_model_is_traced_once_and_goes(strategy):
    model = average_twice(strategy)
    keras.backend.clear_session()
    gc.collect()
    assert model() is None
