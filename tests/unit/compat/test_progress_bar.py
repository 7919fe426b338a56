"""The progress bar: which logs it shows, while other callbacks receive all of them."""

import keras
import numpy as np
import pytest

from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat.keras import progress_bar


@pytest.fixture(autouse=True)
def hooks():
    keras_compat.install()


HIDDEN = {"step_ms/worker_0": 1.5, "skipped_steps": 0.0}


class Logging(keras.callbacks.Callback):
    """Logs what it is given at the end of each epoch."""

    def __init__(self, shown, hidden):
        super().__init__()
        self.shown, self.hidden = shown, hidden

    def on_epoch_end(self, epoch, logs=None):
        keras_compat.log(self.model, logs, self.shown, self.hidden)


@pytest.fixture
def model():
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def fit(model, *callbacks):
    options = {"verbose": 2, "callbacks": callbacks, "batch_size": 2}
    return model.fit(np.ones([4, 3]), np.ones([4, 2]), **options).history


def numbers_in(part):
    name, value = part.split(": ")
    return name, float(value)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({}, []),
        ({"gain": 1.25, "slowest_worker": 0}, ["gain: 1.2500", "slowest_worker: 0"]),
        ({"slowest_worker": 11}, ["slowest_worker: 11"]),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, ["a: 1.0000", "b: 2.0000"]),
    ],
)
def test_the_bar_shows_at_most_two_values_and_callbacks_receive_all(capsys, model, shown, expected):
    received = {}
    receiving = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: received.update(logs)
    )
    history = fit(model, Logging(shown, HIDDEN), receiving)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "loss: " in line)
    _, *values = (part for part in line.split(" - ") if ": " in part)
    # These show a rank with four decimal places.
    if keras_compat.IS_KERAS_2 or keras.__version__.startswith("3.11."):
        values, expected = ([numbers_in(part) for part in each] for each in (values, expected))
    assert values == expected, line
    for name, value in {**shown, **HIDDEN}.items():
        assert history[name] == [value] and received[name] == value


def test_a_later_training_shows_a_user_s_value_of_the_same_name(capsys, model):
    fit(model, Logging({}, HIDDEN))
    of_user = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(skipped_steps=3.0)
    )
    fit(model, of_user)
    assert "skipped_steps: 3.0000" in capsys.readouterr().out


def test_nothing_is_logged_without_logs(model):
    keras_compat.log(model, None, {"gain": 1.0}, {})
    assert model not in progress_bar._logged
