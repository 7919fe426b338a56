"""Train the digits from weights and batches that depend on no version; write what comes out.

    python train.py FOLDER [--alone]

Each worker writes its weights to FOLDER/RANK.npz. Alone is plain Keras, without tf_adasum.
"""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

folder, alone = pathlib.Path(sys.argv[1]), sys.argv[2:] == ["--alone"]
if not alone:
    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    assert tf_adasum.ops.backend() == "custom"
scope = tf.distribute.get_strategy().scope() if alone else strategy.scope()
digits = load_digits()
random = np.random.default_rng(0)
with scope:
    model = keras.Sequential(
        [
            keras.layers.Dense(32, activation="relu", input_shape=[64]),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    model.set_weights([random.normal(0, 0.2, w.shape).astype(w.dtype) for w in model.get_weights()])
rows = digits.data.astype("float32") / 16, digits.target
dataset = tf.data.Dataset.from_tensor_slices(rows).batch(64, drop_remainder=True)
history = model.fit(dataset, epochs=3, verbose=0)
assert history.history["loss"][-1] < 0.7 * history.history["loss"][0], history.history
np.savez(folder / f"{0 if alone else strategy.rank}.npz", *model.get_weights())
