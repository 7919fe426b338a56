"""Time the ends of the epochs of `fit`, with tf.data's autotuning and without it.

    python benchmarks/epoch_ends.py

Two workers train a small model whose steps last as long as those of a large one, under
AdasumMirroredStrategy, on a dataset that switches its autotuning on, and on the same one as the
strategy takes it, in turn. Writes benchmarks/results/DATE-epoch_ends.md.
"""

import argparse
import time

import numpy as np
import report

STEPS = 8  # of an epoch
LATE = 0.5  # seconds


def ends_of_epochs(model, dataset, epochs, seconds):
    """Return the seconds between the last step of each epoch and the first one of the next.

    Args:
        model: a compiled model.
        dataset: of STEPS batches.
        epochs: how many to train.
        seconds: what an epoch lasts.
    """
    import keras

    ends = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0 and self.last is not None:
                ends.append(time.perf_counter() - self.last)
            time.sleep(seconds / STEPS)

        def on_train_batch_end(self, batch, logs=None):
            self.last = time.perf_counter()

        def on_train_begin(self, logs=None):
            self.last = None

    model.fit(dataset, epochs=epochs, verbose=0, callbacks=[Clock()])
    return ends


def measure(rounds, epochs, seconds, out):
    """Return the ends of epochs with autotuning and without it, on every worker."""
    import keras
    import tensorflow as tf

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.ones([16 * STEPS, 8], np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1]))
    dataset = dataset.map(lambda x, y: (x + 1, y), num_parallel_calls=tf.data.AUTOTUNE).batch(16)
    options = tf.data.Options()
    options.autotune.enabled = True
    datasets = {"on": dataset.with_options(options), "off": dataset}
    ends = {kind: [] for kind in datasets}
    for _ in range(rounds):
        for kind, own in datasets.items():
            ends[kind] += ends_of_epochs(model, own, epochs, seconds)
    report.save(strategy, ends, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.5, help="that an epoch lasts")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.out:
        measure(given.rounds, given.epochs, given.seconds, given.out)
        return
    options = ["--rounds", given.rounds, "--epochs", given.epochs, "--seconds", given.seconds]
    ends = report.on_workers(given.workers, __file__, *map(str, options))
    rows = []
    for kind, own in ends.items():
        late = np.mean(np.greater(own, LATE))
        rows.append([kind, report.quartiles(own, 1000, 0), f"{max(own):.2f} s", f"{late:.0%}"])
    report.write(
        "epoch_ends",
        "Ends of epochs: tf.data's autotuning on and off",
        f"{given.workers} workers, AdasumMirroredStrategy, a small dataset with a `map` that is "
        f"left to `tf.data.AUTOTUNE`; {given.rounds} rounds of {given.epochs} epochs of "
        f"{given.seconds:g} s, in turn. From the last step of an epoch to the first one of the "
        "next, on worker 0: milliseconds, median (quartiles); the longest; how many took more than "
        f"{LATE:g} s. With longer epochs the longest grows, up to a minute.\n\n"
        + report.table(["autotuning", "milliseconds", "longest", "late"], rows),
    )


if __name__ == "__main__":
    main()
