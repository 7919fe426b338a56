"""Train handwritten digits, under Slurm or alone; go on where the last start was stopped.

cd examples/clusters/slurm && sbatch train.sh
srun -N 2 -n 4 python examples/clusters/slurm/train.py backup
python examples/clusters/slurm/train.py backup
"""

import sys

import keras
from sklearn.datasets import load_digits

import tf_adasum

strategy = tf_adasum.AdasumMirroredStrategy()  # finds the other workers by Slurm's variables
keras.utils.set_random_seed(0)
digits = load_digits()
x, y = digits.images[..., None] / 16.0, digits.target
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input(x.shape[1:]),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
backup = tf_adasum.callbacks.BackupAndRestore(sys.argv[1])
batch_size = 16 * strategy.num_replicas_in_sync
model.fit(x, y, batch_size=batch_size, epochs=20, callbacks=[backup], verbose=2)
if strategy.is_first_worker:
    model.save("digits.keras")
