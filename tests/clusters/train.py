"""Train the digits, the same way however the workers are started; write the final weights.

    python train.py FOLDER [BACKUP SECONDS]

Each worker writes its weights to FOLDER/RANK.npz. With a folder for backups training goes on from
there, and each epoch takes so many seconds more.
"""

import pathlib
import sys
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import tf_adasum

EPOCHS = 6

folder, *slowly = sys.argv[1:]
strategy = tf_adasum.AdasumMirroredStrategy()
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
callbacks = []
if slowly:
    backup, seconds = slowly
    callbacks = [
        tf_adasum.callbacks.BackupAndRestore(backup),
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: time.sleep(float(seconds))
        ),
    ]
model.fit(
    digits.data / 16.0,
    digits.target,
    batch_size=64,
    epochs=EPOCHS,
    callbacks=callbacks,
    verbose=0,
)
np.savez(pathlib.Path(folder) / f"{strategy.rank}.npz", *model.get_weights())
