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

    def late(rows):
        time.sleep(seconds)
        return rows

    def make(context):
        rows = tf.data.Dataset.from_tensors(np.ones([1, 4], "float32")).repeat(STEPS * EPOCHS)
        if rank_of(strategy) == slow:
            rows = rows.map(
                lambda x: tf.ensure_shape(tf.numpy_function(late, [x], x.dtype), [1, 4])
            )
        return rows.map(lambda x: (x, x[:, :1]))

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    report = StragglerReport()
    data = strategy.distribute_datasets_from_function(make)
    options = {"steps_per_epoch": STEPS, "epochs": EPOCHS, "verbose": 2}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = model.fit(data, callbacks=[OrthogonalityTracker(), report], **options).history
    assert report.epochs == [0, 1, 2]
    shown = [line for line in printed.getvalue().splitlines() if "loss: " in line]
    return {**history, "shown": np.array(shown)}
