"""Train the digits, the same way however the workers are started; write the final weights.

    python train.py FOLDER

Each worker writes its weights to FOLDER/RANK.npz.
"""

import pathlib
import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import tf_adasum

folder = pathlib.Path(sys.argv[1])
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
model.fit(digits.data / 16.0, digits.target, batch_size=64, epochs=1, verbose=0)
np.savez(folder / f"{strategy.rank}.npz", *model.get_weights())
