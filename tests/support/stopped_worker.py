"""A worker that trains with backups, and gets signals; see `tests/multi_worker/test_stopping.py`.

    python stopped_worker.py '{"folder": "...", "signals": {"1": ["validation", 1, 1, "SIGTERM"]}}'

Of each rank in "signals": the moment, the epoch and the batch after which it gets the signal. Its
last line of output is JSON: how far it came, and a digest of its weights.
"""

import hashlib
import json
import os
import signal
import sys

import keras
import numpy as np

import tf_adasum

ASKED = json.loads(sys.argv[1])
EPOCHS, BATCHES, BATCH = 4, 6, 8
signal.alarm(int(ASKED.get("seconds", 240)))

strategy = tf_adasum.AdasumMirroredStrategy()
RANK = strategy._workers.rank
MOMENT, *AT, SIGNAL = ASKED["signals"].get(str(RANK), ["none", 0, 0, "SIGTERM"])


class Signalled(keras.callbacks.Callback):
    """Gets a signal, and notes what it has seen."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _come(self, moment, batch):
        self.seen.append([moment, self.epoch, batch])
        if self.seen[-1] == [MOMENT, *AT]:
            os.kill(os.getpid(), getattr(signal, SIGNAL))

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._come("batch", batch)

    def on_test_batch_end(self, batch, logs=None):
        self._come("validation", batch)


keras.utils.set_random_seed(1)
with strategy.scope():
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([keras.layers.Input([6]), *layers, keras.layers.Dense(1)])
    steps_per_execution = ASKED.get("steps_per_execution", 1)
    model.compile(
        tf_adasum.optimizers.DeltaAdasum(keras.optimizers.Adam(0.02), local_steps=4),
        "mse",
        metrics=["mae"],
        steps_per_execution=steps_per_execution,
    )

random = np.random.default_rng(0)
x = random.standard_normal([BATCH * BATCHES, 6]).astype("float32")
y = x.sum(axis=1, keepdims=True)
ended, signalled = "trained", Signalled()
try:
    backup = tf_adasum.callbacks.BackupAndRestore(f"{ASKED['folder']}/backup-{RANK}")
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=(x, y),
        validation_batch_size=BATCH,
        callbacks=[backup, signalled],
        verbose=0,
    ).history
except BaseException as error:
    ended, history = f"{type(error).__name__}: {error}", {}
    raise
finally:
    digest = hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights())).hexdigest()
    said = {"ended": ended, "seen": signalled.seen, "digest": digest, "history": history}
    print("\n" + json.dumps(said), flush=True)
