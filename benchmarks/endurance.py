"""Train for thousands of steps and look for memory that is not freed.

    python benchmarks/endurance.py [--transport ucx] [--kinds fit loop]

Two workers run `fit` for many epochs, with validation and callbacks, and then a custom training
loop; each process records its resident memory after every tenth step. The memory that a step does
not free is the slope of a least-squares line through the samples after the warm-up.

The custom loops train a small model, whose gradients are sent in one message, and a wide model,
whose gradients are cut into shards. For comparison, the report also has the memory that TensorFlow
itself does not free: the custom loop runs under MultiWorkerMirroredStrategy, whose `fit` does not
work on several workers. Every epoch needs more memory, because Keras creates a distributed iterator
for the training data and another one for the validation data. The same iterators are also measured
under the stock strategy.

At the end, all replicas must hold the same bits (`strategy.check_replicas`). Writes
benchmarks/results/DATE-endurance.md. With another transport, the stock strategy is left out, and
the name of the report includes the transport.
"""

import argparse
import contextlib
import os
import pathlib
import tempfile

import numpy as np
import report

WORKERS = 2
EPOCH = 100  # steps
BATCH = 32  # rows, of all workers together
NARROW, WIDE = 32, 40_000  # units: gradients of 3 kB and of 3.2 MB
SAMPLED = 10  # steps between two samples
WARM_UP = 0.4  # share of all steps, until the allocators have enough memory
SECONDS = 3600  # after this time, a training counts as hanging, even on a busy machine
KINDS = {
    "fit": "`fit`, one epoch",
    "loop": "custom loop",
    "wide": "custom loop, wide model",
    "stock": "custom loop, stock strategy",
    "epochs": "`fit`, epochs with validation",
    "stock epochs": "two iterators per epoch, stock strategy",
}


def resident_bytes():
    """Return the resident memory of this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def train(kind, steps, transport, out):
    """Train on every worker, and save the samples, [workers, samples]."""
    import keras
    import tensorflow as tf

    import tf_adasum

    strategy = tf.distribute.get_strategy()
    if kind.startswith("stock"):
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf_adasum.AdasumMirroredStrategy(transport=transport)
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x = random.standard_normal([EPOCH * BATCH, 16]).astype("float32")
    y = random.standard_normal([EPOCH * BATCH, 1]).astype("float32")
    with strategy.scope():
        layers = [
            keras.layers.Input([16]),
            keras.layers.Dense(WIDE if kind == "wide" else NARROW, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])

    samples = []

    def sample(step):
        if step % SAMPLED == 0:
            samples.append(resident_bytes())

    if kind in ("fit", "epochs"):
        fit(model, x, y, steps, sample, kind == "epochs", keras, tf_adasum)
    else:
        custom_loop(strategy, model, x, y, steps, sample, kind == "stock epochs")
    if not kind.startswith("stock"):
        strategy.check_replicas()
        strategy._check_model(model)
    own = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([samples], tf.float64)
    )
    gather = tf.function(lambda own: strategy.gather(own, axis=0))
    report.save(strategy, gather(own).numpy().tolist(), out)


def fit(model, x, y, steps, sample, in_epochs, keras, tf_adasum):
    """Run `fit` with callbacks: for one epoch, or for many epochs with validation."""
    if not in_epochs:
        x, y = (np.concatenate([array] * (steps // EPOCH)) for array in (x, y))
    validation = {"validation_data": (x[: 4 * BATCH], y[: 4 * BATCH])} if in_epochs else {}
    steps_seen = iter(range(1, steps + 1))
    with tempfile.TemporaryDirectory() as folder:
        model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=steps // EPOCH if in_epochs else 1,
            **validation,
            verbose=0,
            callbacks=[
                keras.callbacks.LambdaCallback(
                    on_train_batch_end=lambda batch, logs: sample(next(steps_seen))
                ),
                tf_adasum.callbacks.ReplicaCheck("epoch"),
                tf_adasum.callbacks.ReplicaCheck(7),
                keras.callbacks.CSVLogger(pathlib.Path(folder, "log.csv")),
                keras.callbacks.ModelCheckpoint(
                    pathlib.Path(folder, "model.weights.h5"), save_weights_only=True
                ),
                keras.callbacks.ReduceLROnPlateau("loss", patience=3),
                keras.callbacks.EarlyStopping("loss", patience=10**6),
            ],
        )


def custom_loop(strategy, model, x, y, steps, sample, in_epochs):
    """Run the loop of the README and check the model; with `in_epochs`, create new iterators."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat()
    batches = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def train_step(batch):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return loss

        losses = strategy.run(replica_step, args=batch)
        return strategy.reduce("MEAN", losses, axis=None)

    iterator = iter(batches)
    is_ours = hasattr(strategy, "working_together")
    with strategy.working_together() if is_ours else contextlib.nullcontext():
        for step in range(1, steps + 1):
            train_step(next(iterator))
            sample(step)
            if in_epochs and step % EPOCH == 0:
                next(iter(strategy.experimental_distribute_dataset(dataset.take(4))))
                iterator = iter(batches)


def slope(samples):
    """Return the slope of the samples after the warm-up in bytes per step, and its error."""
    first = int(WARM_UP * len(samples))
    y = np.array(samples[first:], np.float64)
    x = SAMPLED * np.arange(len(y))
    (gradient, _), covariance = np.polyfit(x, y, 1, cov=True)
    return gradient, np.sqrt(covariance[0, 0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--transport", choices=["tensorflow", "ucx"], default="tensorflow")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        train(arguments.worker, arguments.steps, arguments.transport, arguments.out)
        return
    is_default = arguments.transport == parser.get_default("transport")
    rows = []
    for kind in arguments.kinds:
        if kind.startswith("stock") and not is_default:
            continue
        options = ("--worker", kind, "--steps", str(arguments.steps))
        options += ("--transport", arguments.transport)
        measured = report.on_workers(WORKERS, __file__, *options, seconds=SECONDS)
        for worker, samples in enumerate(measured):
            places = (0, int(WARM_UP * len(samples)), -1)
            bytes_per_step, error = slope(samples)
            row = [KINDS[kind], worker, *(f"{samples[place] / 2**20:.1f}" for place in places)]
            rows.append([*row, f"{bytes_per_step / 1024:.3f} ± {error / 1024:.3f}"])
    header = ["training", "worker", "first, MiB", "after warm-up, MiB", "last, MiB"]
    report.write(
        "endurance" if is_default else f"endurance_{arguments.transport}",
        "Memory over thousands of steps",
        f"{WORKERS} workers, {arguments.steps} steps each in epochs of {EPOCH}, "
        f"`transport={arguments.transport!r}`; resident memory after every {SAMPLED}th step; a "
        f"line through all but the first {WARM_UP:.0%}, ± its standard error. At the end the "
        f"replicas held the same bits.\n\n{report.table([*header, 'slope, KiB/step'], rows)}",
    )


if __name__ == "__main__":
    main()
