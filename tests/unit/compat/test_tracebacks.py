"""Tracebacks: what a user sees of an error ends at the user's line."""

import traceback

import keras
import numpy as np
import pytest


def model_of(strategy, *layers):
    with strategy.scope():
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("mine")


def in_a_graph(strategy):
    layers = [keras.layers.Input([1], dtype="int32"), keras.layers.Embedding(2, 1)]
    model = model_of(strategy, *layers, keras.layers.Flatten())
    model.predict(np.full([4, 1], 7), verbose=0)


def in_a_callback(strategy):
    model = model_of(strategy, keras.layers.Input([3]))
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0, callbacks=[Fails()])


def printed(function, *arguments):
    """Return what Python prints of the error of a function."""
    with pytest.raises(Exception) as caught:
        function(*arguments)
    error = caught.value
    return "".join(traceback.format_exception(error.with_traceback(error.__traceback__.tb_next)))


@pytest.mark.keras3_only("Keras 2 filters tracebacks in its own way")
@pytest.mark.parametrize(
    ("function", "lines", "message"),
    [
        (in_a_callback, ["in in_a_callback", "in on_epoch_end"], "KeyError: 'mine'"),
        (in_a_graph, ["in in_a_graph"], "is not in [0, 2)"),
    ],
)
def test_it_ends_at_the_users_line(strategy, function, lines, message):
    text = printed(function, strategy)
    frames = [line for line in text.splitlines() if line.startswith("  File ")]
    own = [frame.rpartition(", ")[2] for frame in frames if __file__ in frame]
    hook = [frame for frame in frames if "tf_adasum/compat/" in frame]  # that shortens the others
    assert own == lines and len(own) + len(hook) == len(frames) and len(hook) == 1, text
    assert message in text
    keras.config.disable_traceback_filtering()
    try:
        assert "keras/src/" in printed(function, strategy)
    finally:
        keras.config.enable_traceback_filtering()
