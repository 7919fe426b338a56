"""Tracebacks: what a user sees of an error ends at the user's line."""

import inspect
import sys
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.compat import tracebacks
from tf_adasum.errors import WorkerLostError


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


def of_our_own(strategy):
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
    with strategy.scope():
        model.compile("sgd", "mse")


def in_a_callback(strategy):
    model = model_of(strategy, keras.layers.Input([3]))
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0, callbacks=[Fails()])


@pytest.fixture
def printed(monkeypatch):
    """What is printed where an exception ends the program; returns a function of a function."""
    texts = []

    def print_exception(*error):
        texts.append("".join(traceback.format_exception(*error)))

    monkeypatch.setattr(sys, "excepthook", print_exception)
    tracebacks.shorten_uncaught()
    hook = sys.excepthook
    tracebacks.shorten_uncaught()
    assert sys.excepthook is hook

    def of(function, *arguments):
        try:
            function(*arguments)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
        return texts.pop()

    return of


@pytest.mark.keras3_only("Keras 2 filters tracebacks in its own way")
@pytest.mark.parametrize(
    ("function", "lines", "message"),
    [
        (in_a_callback, ["in in_a_callback", "in on_epoch_end"], "KeyError: 'mine'"),
        (in_a_graph, ["in in_a_graph"], "is not in [0, 2)"),
        (of_our_own, ["in of_our_own"], "was built or loaded outside of the scope"),
        (
            lambda strategy: strategy.run(lambda: tf.reshape(tf.ones([3]), [2])),
            ["in <lambda>", "in <lambda>"],
            "Input to reshape",
        ),
    ],
)
def test_it_ends_at_the_users_line(strategy, printed, function, lines, message):
    text = printed(function, strategy)
    frames = [line for line in text.splitlines() if line.startswith("  File ")]
    assert all(__file__ in frame for frame in frames), text
    assert [frame.rpartition(", ")[2] for frame in frames] == ["in of", *lines]
    assert message in text
    keras.config.disable_traceback_filtering()
    try:
        assert "tf_adasum" in printed(function, strategy).replace(__file__, "")
    finally:
        keras.config.enable_traceback_filtering()


CALL = """
def call():
    try:
        lost()
    except Exception as error:
        raise type(error)(str(error)) from error.__cause__
"""


@pytest.mark.keras3_only("Keras 2 has no such switch")
def test_our_own_error_does_not_show_what_it_was_raised_from(printed, caplog):
    def lost():
        try:
            tf.reshape(tf.ones([3]), [2])
        except tf.errors.InvalidArgumentError as error:
            raise WorkerLostError("worker 1 was lost") from error

    own = {"__name__": "tf_adasum.example", "lost": lost}
    exec(compile(CALL, tf_adasum.__file__.replace("__init__", "example"), "exec"), own)
    with caplog.at_level("DEBUG", "tf_adasum"):
        text = printed(own["call"])
    assert "InvalidArgumentError" not in text and "worker 1 was lost" in text
    assert "InvalidArgumentError" in caplog.text


class Counts(keras.metrics.Mean):
    """A metric whose own methods are not the line that is meant."""

    def __init__(self):
        super().__init__(name="counts")


@pytest.mark.keras3_only("Keras 2 has a message of its own")
def test_a_metric_made_outside_of_the_scope_names_its_line(strategy):
    model = model_of(strategy, keras.layers.Input([3]))
    line = inspect.currentframe().f_lineno + 1
    metric = Counts()
    with pytest.raises(ValueError, match="The metric 'counts' was created outside") as caught:
        model.compile("sgd", "mse", metrics=[metric])
    assert f"{__file__}, line {line}, so" in str(caught.value)
