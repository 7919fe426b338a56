"""What `test_stragglers.py` trains: one worker takes longer for its rows."""

import contextlib
import io
import time

import keras
import numpy as np
import tensorflow as tf

from scenarios.callbacks import rank_of
from tf_adasum.callbacks import OrthogonalityTracker, StragglerReport

STEPS, EPOCHS = 30, 3


def train(strategy, slow, seconds):
    """Three epochs, in which the dataset of one worker sleeps in each step.

    Returns the history, and as "shown" the lines of the progress bar with metrics.
    """

    def late(x, y):
        time.sleep(seconds)
        return x, y

    def make(context=None):
        rows = np.ones([STEPS, 4], "float32")
        dataset = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat(EPOCHS).batch(1)
        if rank_of(strategy) == slow:
            dataset = dataset.map(
                lambda x, y: _like(tf.numpy_function(late, [x, y], 2 * [x.dtype]))
            )
        return dataset

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    report = StragglerReport()
    data = strategy.distribute_datasets_from_function(make)
    length = {"steps_per_epoch": STEPS, "epochs": EPOCHS}
    given = {"verbose": 2, "callbacks": [OrthogonalityTracker(), report]}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = model.fit(data, **length, **given).history
    assert report.epochs == [0, 1, 2]
    shown = [line for line in printed.getvalue().splitlines() if "loss: " in line]
    return {**history, "shown": np.array(shown)}


def _like(batch):
    x, y = batch
    return tf.ensure_shape(x, [None, 4]), tf.ensure_shape(y, [None, 1])
