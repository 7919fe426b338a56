"""A worker that trains with backups on a disk with a fault; see `disk_cases.run`.

    python disk_worker.py '{"strategy": "adasum", "backup_dir": "/mnt/backup", "fault": null, ...}'

Its last line of output is JSON: the result. Under the strategy "keras" it trains alone, with
Keras's own callback.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import time

ASKED = json.loads(sys.argv[1])
TASK = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]
RANK = TASK["index"]
BACKUPS = pathlib.Path(ASKED["backup_dir"].format(rank=RANK))
EPOCHS, ROWS, BATCH = 4, 32, 8
_epochs, _begin = [], []


def inject_fault(epoch):
    """The fault of this start, as an epoch begins; "interrupted" on all workers."""
    fault = ASKED["fault"]
    if fault == "interrupted" and epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if RANK > 0 or epoch != 1:
        return
    if fault == "fills":
        with open(BACKUPS.parent / "filler", "wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
    elif fault == "removes":
        shutil.rmtree(BACKUPS)
    elif fault == "killed":  # by the system, in the middle of the next backup
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        half = ASKED["width"] ** 2 * 4
        resource.setrlimit(resource.RLIMIT_FSIZE, (half, resource.RLIM_INFINITY))


def main():
    import keras
    import numpy as np

    if ASKED["strategy"] == "adasum":
        import tf_adasum

        strategy = tf_adasum.AdasumMirroredStrategy()
        scope, kind = strategy.scope(), tf_adasum.callbacks.BackupAndRestore
    else:
        scope, kind = contextlib.nullcontext(), keras.callbacks.BackupAndRestore

    class Faults(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            _epochs.append(epoch)
            inject_fault(epoch)

    keras.utils.set_random_seed(0)
    width = ASKED["width"]
    with scope:
        layers = [keras.layers.Dense(width, use_bias=False), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input([width]), *layers])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    x = np.random.default_rng(0).normal(0.0, 0.05, [ROWS, width]).astype("float32")
    callbacks = [Faults(), kind(str(BACKUPS))]
    _begin.append(time.monotonic())
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(x, np.ones([ROWS, 1]), callbacks=callbacks, **options)
    weights = model.get_weights()
    assert all(np.isfinite(each).all() for each in weights)
    return hashlib.sha256(b"".join(each.tobytes() for each in weights)).hexdigest()


def report(error, digest=None):
    told = {
        "type": type(error).__name__ if error else None,
        "message": str(error)[:2000] if error else "",
        "digest": digest,
        "seconds": time.monotonic() - _begin[0] if _begin else None,
        "first": _epochs[0] if _epochs else None,
    }
    print("\n" + json.dumps(told), flush=True)


if __name__ == "__main__":
    signal.alarm(300)  # whatever becomes of those who started it
    try:
        digest = main()
    except BaseException as error:
        report(error)
        raise
    report(None, digest)
