"""Train a small CNN on handwritten digits, on as many workers as there are.

    python examples/train_digits.py                                  one process
    tf-adasum-launch -n 4 examples/train_digits.py --rule adasum     four local workers

The digits are scikit-learn's: 1797 real 8×8 scans, shifted by up to one pixel while training, but
for ``--no-shift``; 300 of them are kept for validation. ``--data mnist`` takes MNIST's 28×28
digits, which Keras downloads.

At the end worker 0 prints a table, and saves the validation accuracy of every epoch (``NAME.json``)
and a picture (``NAME.png``) in which earlier runs can be drawn too: ``--also mean.json``.
"""

import argparse
import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

import tf_adasum


def parse_arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rule", default="adasum", choices=["adasum", "mean", "sum"])
    parser.add_argument("--batch-per-replica", type=int, default=16)
    parser.add_argument("--optimizer", default="sgd", help="name of a Keras optimizer")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="digits", choices=["digits", "mnist"])
    parser.add_argument("--shift", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=pathlib.Path, default=None, metavar="NAME")
    parser.add_argument("--also", type=pathlib.Path, nargs="*", default=[], metavar="JSON")
    return parser.parse_args()


def load(name):
    """Return training and validation images in [0, 1], shape [n, side, side, 1], and labels."""
    if name == "mnist":
        train, validation = keras.datasets.mnist.load_data()
        scale = 255.0
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        shuffled = np.random.default_rng(0).permutation(len(digits.target))
        held_out, kept = shuffled[:300], shuffled[300:]
        train = digits.images[kept], digits.target[kept]
        validation = digits.images[held_out], digits.target[held_out]
        scale = 16.0
    return [
        ((images[..., None] / scale).astype("float32"), labels.astype("int64"))
        for images, labels in (train, validation)
    ]


def shuffled(images, labels, *, batch_size, seed, shift=True):
    """Return a dataset of shuffled batches in which images are moved by up to one pixel.

    All workers have to see the same global batches, of which each takes its part: the order and
    the shifts come from the seed and the position in the epoch alone.
    """
    side = images.shape[1]

    def moved(index, image_and_label):
        image, label = image_and_label
        if not shift:
            return image, label
        padded = tf.pad(image, [[1, 1], [1, 1], [0, 0]])
        crop = tf.image.stateless_random_crop(padded, [side, side, 1], seed=[seed, index])
        return crop, label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(len(images), seed=seed, reshuffle_each_iteration=True)
    return dataset.enumerate().map(moved).batch(batch_size, drop_remainder=True)


def build_cnn(input_shape):
    """Return a CNN of two convolutions, about 20,000 weights for 8×8 digits."""
    return keras.Sequential(
        [
            keras.layers.Input(input_shape),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train(arguments):
    """Train; return the run's settings and the validation accuracy after each epoch."""
    keras.utils.set_random_seed(arguments.seed)
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=arguments.rule)
    replicas = strategy.num_replicas_in_sync

    train_data, validation_data = load(arguments.data)
    dataset = shuffled(
        *train_data,
        batch_size=arguments.batch_per_replica * replicas,
        seed=arguments.seed,
        shift=arguments.shift,
    )
    optimizer = keras.optimizers.get(arguments.optimizer)
    optimizer = type(optimizer).from_config(
        {**optimizer.get_config(), "learning_rate": arguments.learning_rate}
    )
    with strategy.scope():
        model = build_cnn(train_data[0].shape[1:])
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    start = time.perf_counter()
    history = model.fit(
        dataset,
        epochs=arguments.epochs,
        validation_data=tf.data.Dataset.from_tensor_slices(validation_data).batch(300),
        shuffle=False,  # the dataset does it, alike on all workers
        verbose=2,
    )
    return {
        "rule": arguments.rule if replicas > 1 else "one replica",
        "replicas": replicas,
        "batch_per_replica": arguments.batch_per_replica,
        "optimizer": arguments.optimizer,
        "learning_rate": arguments.learning_rate,
        "seed": arguments.seed,
        "data": arguments.data,
        "steps_per_epoch": len(train_data[0]) // (arguments.batch_per_replica * replicas),
        "seconds": round(time.perf_counter() - start, 1),
        "val_accuracy": history.history["val_accuracy"],
        "loss": history.history["loss"],
        "is_first_worker": strategy.is_first_worker,
    }


def print_table(runs):
    """Print one line for each run."""
    print(f"\n{'rule':12} {'replicas':>8} {'lr':>8} {'epochs':>6} {'loss':>8} {'accuracy':>8}")
    for run in runs:
        print(
            f"{run['rule']:12} {run['replicas']:8} {run['learning_rate']:8g} "
            f"{len(run['val_accuracy']):6} {run['loss'][-1]:8.4f} {run['val_accuracy'][-1]:8.3f}"
        )


def save_picture(runs, path):
    """Draw the validation accuracy of each run over the epochs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for run in runs:
        accuracies = run["val_accuracy"]
        label = run["rule"] + (f", {run['replicas']} replicas" if run["replicas"] > 1 else "")
        label += (
            f", learning rate {run['learning_rate']:g}, {run['steps_per_epoch']} steps an epoch"
        )
        axes.plot(range(1, len(accuracies) + 1), accuracies, marker="o", label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy")
    axes.set_ylim(0, 1)
    axes.set_title(
        f"A small CNN on {runs[0]['data']}, {runs[0]['optimizer']}, "
        f"{runs[0]['batch_per_replica']} samples on each replica; one seed ({runs[0]['seed']})"
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main():
    """Train, and report on the first worker."""
    arguments = parse_arguments()
    run = train(arguments)
    if not run.pop("is_first_worker"):
        return
    runs = [json.loads(path.read_text()) for path in arguments.also] + [run]
    print_table(runs)
    name = arguments.out or pathlib.Path(f"digits_{arguments.rule}")
    name.parent.mkdir(parents=True, exist_ok=True)
    name.with_suffix(".json").write_text(json.dumps(run, indent=2) + "\n")
    save_picture(runs, name.with_suffix(".png"))
    print(f"saved {name.with_suffix('.json')} and {name.with_suffix('.png')}")


if __name__ == "__main__":
    main()
