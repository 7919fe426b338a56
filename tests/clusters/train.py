"""Train the digits, the same way however the workers are started; write the final weights.

    python train.py FOLDER [BACKUP SECONDS]

Each worker writes its process id to FOLDER/RANK.pid, and its weights to FOLDER/RANK.npz. Training
goes on from a backup, if there is one; each epoch takes so many seconds more.
"""

import os
import pathlib
import sys
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import tf_adasum

EPOCHS = 6

folder = pathlib.Path(sys.argv[1])
backup, seconds = sys.argv[2:] or (folder / "backup", "0")
strategy = tf_adasum.AdasumMirroredStrategy()
(folder / f"{strategy.rank}.pid").write_text(str(os.getpid()))
keras.utils.set_random_seed(0)
digits = load_digits()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input([64]),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [
    # With it arrays are shuffled in another order than without: all have it.
    keras.callbacks.BackupAndRestore(backup),
    keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: time.sleep(float(seconds))),
]
model.fit(
    digits.data / 16.0,
    digits.target,
    batch_size=64,
    epochs=EPOCHS,
    callbacks=callbacks,
    verbose=0,
)
np.savez(folder / f"{strategy.rank}.npz", *model.get_weights())
