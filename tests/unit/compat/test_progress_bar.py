"""The progress bar shows few values of our callbacks, while other callbacks receive all of them."""

import keras
import numpy as np
import pytest

from tf_adasum.compat import keras as keras_compat

LOGS = {"gain": 1.25, "step_ms/worker_0": keras_compat.Hidden(1.5)}


class Logging(keras.callbacks.Callback):
    """Adds values to the logs of each step and each epoch."""

    def on_train_batch_end(self, batch, logs=None):
        logs.update(LOGS)

    def on_epoch_end(self, epoch, logs=None):
        logs.update(LOGS)


@pytest.mark.parametrize("verbose", [1, 2])
def test_the_bar_leaves_hidden_values_out_and_callbacks_receive_them(capsys, verbose):
    keras_compat.install()
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    received = {}
    receiving = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: received.update(logs)
    )
    options = {"verbose": verbose, "callbacks": [Logging(), receiving], "batch_size": 2}
    history = model.fit(np.ones([4, 3]), np.ones([4, 2]), **options).history
    shown = capsys.readouterr().out
    assert "gain: 1.2500" in shown and "step_ms" not in shown
    for name, value in LOGS.items():
        assert history[name] == [value] and received[name] == value
