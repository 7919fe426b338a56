"""Tracebacks: what a user sees of an error ends at the user's line."""

import traceback

import keras
import numpy as np
import pytest
from support.two_variables import linear


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("mine")


def in_a_graph(strategy):
    model = linear(strategy, layers=[keras.layers.Embedding(2, 1), keras.layers.Flatten()])
    model.predict(np.full([4, 3], 7), verbose=0)


def in_a_callback(strategy):
    model = linear(strategy)
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0, callbacks=[Fails()])


def frames_of(function, *arguments):
    """Return the error of a function, and the frames of its traceback below the function's call."""
    with pytest.raises(Exception) as caught:
        function(*arguments)
    return caught.value, traceback.extract_tb(caught.value.__traceback__)[1:]


@pytest.mark.keras3_only("Keras 2 filters tracebacks in its own way")
@pytest.mark.parametrize(
    ("function", "names", "message"),
    [
        (in_a_callback, ["in_a_callback", "on_epoch_end"], "mine"),
        (in_a_graph, ["in_a_graph"], "is not in [0, 2)"),
    ],
)
def test_it_ends_at_the_users_line(strategy, function, names, message):
    error, frames = frames_of(function, strategy)
    assert [frame.name for frame in frames if frame.filename == __file__] == names
    (hook,) = (frame for frame in frames if frame.filename != __file__)  # that shortens the others
    assert "tf_adasum/compat/" in hook.filename and message in str(error)
    keras.config.disable_traceback_filtering()
    try:
        _, frames = frames_of(function, strategy)
        assert any("keras/src/" in frame.filename for frame in frames)
    finally:
        keras.config.enable_traceback_filtering()
