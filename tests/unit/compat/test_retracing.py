"""TensorFlow warns if functions are traced often, and counts closures of one code together.

So it would warn about our functions, without a fault, if a program has five models.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.two_variables import linear

from tf_adasum.optimizers import DeltaAdasum
from tf_adasum.replicas import average_statistics

TIMES = 7  # it warns of the fifth


@pytest.fixture
def warnings_of(monkeypatch, caplog):
    """A function: the warnings of retracing while something is done several times."""
    monkeypatch.setattr(tf.get_logger(), "propagate", True)  # to the log that pytest keeps

    def listen(action):
        for number in range(TIMES):
            action(number)
        return [message for message in caplog.messages if "retracing" in message]

    return listen


def test_the_warning_is_seen(warnings_of):
    texts = warnings_of(lambda number: tf.function(lambda: tf.constant(number))())
    assert "5 out of the last 5 calls" in texts[0]


def test_averages_of_many_models(strategy, warnings_of):
    def action(number):
        with strategy.scope():
            layers = [keras.layers.Input([3]), keras.layers.BatchNormalization()]
            model = keras.Sequential(layers)
        average_statistics.average(strategy, model)  # also of one replica

    assert warnings_of(action) == []


def test_delta_adasum_s_of_many_models(strategy, warnings_of):
    def action(number):
        model = linear(strategy, lambda: DeltaAdasum(keras.optimizers.SGD(0.1), local_steps=2))
        model.fit(np.ones([2, 3]), np.ones([2, 1]), batch_size=2, verbose=0)
        model.optimizer.synchronize()

    found = warnings_of(action)
    assert not [text for text in found if "DeltaAdasum" in text], found
