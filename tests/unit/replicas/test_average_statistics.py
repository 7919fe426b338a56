"""Which weights are averaged over the replicas; tests with workers show that they are averaged."""

import gc
import weakref

import keras
import numpy as np

from tf_adasum.replicas import average_statistics


def build(strategy):
    with strategy.scope():
        layers = [keras.layers.Dense(2), keras.layers.BatchNormalization()]
        dropout = keras.layers.Dropout(0.5)  # has an integer weight that is not trainable
        model = keras.Sequential([keras.layers.Input([3]), *layers, dropout])
    model.layers[0].trainable = False
    return model


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


def test_a_model_is_traced_once_and_its_memory_is_freed(strategy):
    model = average_twice(strategy)
    keras.backend.clear_session()
    gc.collect()
    assert model() is None


def test_moving_statistics_are_averaged_and_frozen_weights_are_not(strategy, monkeypatch):
    averaged = []
    monkeypatch.setattr(average_statistics.keras_compat, "average", averaged.extend)
    model = build(strategy)
    norm = model.layers[1]
    average_statistics.average(strategy, model)
    assert [id(v) for v in averaged] == [id(norm.moving_mean), id(norm.moving_variance)]
    dense = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
    average_statistics.average(strategy, dense)
    assert len(averaged) == 2, "a model without statistics is not averaged"
