"""What `test_stragglers.py` trains: one worker takes longer for its rows."""

import time

import numpy as np
import tensorflow as tf

from scenarios.basics import compiled, dense
from tf_adasum.callbacks import StragglerReport

STEPS, EPOCHS = 30, 3


def train(strategy, slow, seconds):
    """Return the history of three epochs, in which one worker's dataset sleeps in each step."""

    def late(rows):
        time.sleep(seconds)
        return rows

    def make(context):
        rows = tf.data.Dataset.from_tensors(np.ones([1, 4], "float32")).repeat(STEPS * EPOCHS)
        if strategy.rank == slow:
            rows = rows.map(
                lambda x: tf.ensure_shape(tf.numpy_function(late, [x], x.dtype), [1, 4])
            )
        return rows.map(lambda x: (x, x[:, :1]))

    model = compiled(strategy, dense(4, 1))
    report = StragglerReport()
    data = strategy.distribute_datasets_from_function(make)
    options = {"steps_per_epoch": STEPS, "epochs": EPOCHS, "verbose": 0}
    history = model.fit(data, callbacks=[report], **options).history
    assert report.epochs == [0, 1, 2]
    return history
