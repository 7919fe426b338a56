"""Train a small CNN on handwritten digits, on as many workers as there are.

    python examples/train_digits.py                                  one process
    tf-adasum-launch -n 4 examples/train_digits.py --rule adasum     four local workers

The digits are scikit-learn's: 1797 real 8×8 scans, shifted by up to one pixel while training, but
for ``--no-shift``; 300 of them are kept for validation. ``--data mnist`` takes MNIST's 28×28
digits, which Keras downloads.

At the end worker 0 prints a table, and saves the validation accuracy of every seed and epoch
(``NAME.json``) and a picture (``NAME.png``), which also shows earlier runs: ``--also mean.json``.
"""

import argparse
import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

import tf_adasum

# How the picture calls the rules.
NAMES = {"one replica": "one device", "adasum": "Adasum", "mean": "averaging", "sum": "summing"}


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
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
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
    """Train with each seed; return the settings, and the accuracies and losses of each seed."""
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=arguments.rule)
    replicas = strategy.num_replicas_in_sync
    batch_size = arguments.batch_per_replica * replicas
    (images, labels), validation = load(arguments.data)
    with strategy.scope():
        optimizer = keras.optimizers.get(
            {
                "class_name": arguments.optimizer,
                "config": {"learning_rate": arguments.learning_rate},
            }
        )
        model = build_cnn(images.shape[1:])
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        optimizer.build(model.trainable_variables)
    optimizer.save_own_variables(untrained := {})
    start = time.perf_counter()
    histories = []
    for seed in arguments.seeds:
        # The same model, so that TensorFlow compiles its step once.
        keras.utils.set_random_seed(seed)
        model.set_weights(build_cnn(images.shape[1:]).get_weights())
        optimizer.load_own_variables(untrained)
        dataset = shuffled(images, labels, batch_size=batch_size, seed=seed, shift=arguments.shift)
        history = model.fit(
            dataset,
            epochs=arguments.epochs,
            validation_data=tf.data.Dataset.from_tensor_slices(validation).batch(300),
            shuffle=False,  # the dataset does it, alike on all workers
            verbose=2,
        )
        histories.append(history.history)
    return {
        "rule": arguments.rule if replicas > 1 else "one replica",
        "replicas": replicas,
        "batch_per_replica": arguments.batch_per_replica,
        "optimizer": arguments.optimizer,
        "learning_rate": arguments.learning_rate,
        "seeds": arguments.seeds,
        "data": arguments.data,
        "steps_per_epoch": len(images) // batch_size,
        "seconds": round(time.perf_counter() - start, 1),
        "val_accuracy": [history["val_accuracy"] for history in histories],
        "loss": [history["loss"] for history in histories],
        "is_first_worker": strategy.is_first_worker,
    }


def print_table(runs):
    """Print one line for each run, with medians over the seeds."""
    print(f"\n{'rule':12} {'replicas':>8} {'lr':>8} {'epochs':>6} {'loss':>8} {'accuracy':>8}")
    for run in runs:
        loss, accuracy = (np.median(run[name], axis=0) for name in ("loss", "val_accuracy"))
        print(
            f"{run['rule']:12} {run['replicas']:8} {run['learning_rate']:8g} "
            f"{len(loss):6} {loss[-1]:8.4f} {accuracy[-1]:8.3f}"
        )


def save_picture(runs, path):
    """Draw the validation accuracy of each run over the epochs: median and range of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.6), layout="constrained")
    for run in runs:
        accuracies = np.array(run["val_accuracy"])
        epochs = range(1, accuracies.shape[1] + 1)
        label = NAMES[run["rule"]]
        label += f" on {run['replicas']} replicas" if run["replicas"] > 1 else ""
        label += (
            f", learning rate {run['learning_rate']:g}: {run['steps_per_epoch']} steps per epoch"
        )
        line = axes.plot(epochs, np.median(accuracies, axis=0), marker="o", label=label)[0]
        lowest, highest = accuracies.min(axis=0), accuracies.max(axis=0)
        axes.fill_between(epochs, lowest, highest, color=line.get_color(), alpha=0.2)
    first = runs[0]
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy")
    axes.set_ylim(0, 1)
    axes.set_title(
        f"A small CNN on {first['data']}, {first['optimizer'].upper()}, "
        f"{first['batch_per_replica']} samples per replica and step\n"
        f"median and range of {len(first['seeds'])} seed(s)",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
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
