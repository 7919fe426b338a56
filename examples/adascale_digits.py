"""AdaScale against linear scaling: digits, with batches S = 1, 4, 8, 16, 32 times as large.

    python examples/adascale_digits.py                        about ten minutes
    python examples/adascale_digits.py --scales 1 8 --seeds 0 --steps 400

The CNN and the data of train_digits.py, SGD with momentum 0.9, a learning rate that falls to a
tenth after three quarters of the T steps that S = 1 takes. A step on S small batches is S steps of
`gradient_accumulation_steps`, in one process; on S replicas the numbers are the same.
Keras 2 has no accumulation, so this needs TensorFlow 2.21.

    AS     AdaScale, until the scale-invariant step is T
    LSW    linear scaling with warm-up: S times the learning rate, T/S iterations
    LSW+   the same, stretched to as many iterations as AdaScale took

Writes a table of the shape of Johnson et al.'s Table 2, all numbers, and a picture of the gains.

Reference: Johnson et al., ICML 2020, arXiv 2007.05105.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import platform
import statistics
import sys
import time

import keras
import tensorflow as tf
from train_digits import build_cnn, load, shuffled

from tf_adasum.callbacks import GainTracker, StopAtScaleInvariantStep
from tf_adasum.optimizers import AdaScale
from tf_adasum.schedules import LinearScalingWarmup

METHODS = ("AS", "LSW", "LSW+")


def parse_arguments():
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--scales", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1488, help="T, steps at S = 1")
    parser.add_argument("--batch", type=int, default=16, help="rows of a small batch")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("adascale_digits"))
    return parser.parse_args()


def falling(learning_rate, steps):
    """Return the schedule of S = 1."""
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [3 * steps // 4], [learning_rate, learning_rate / 10]
    )


def make_optimizer(method, scale, schedule, steps, iterations):
    """Return SGD for one method, on `scale` accumulated batches."""
    if method != "AS":
        # With accumulation Keras asks schedules for every micro-step, of which there are S times as
        # many as iterations.
        schedule = LinearScalingWarmup(
            schedule, scale=scale, total_steps=steps, iterations=scale * iterations
        )
    accumulation = scale if scale > 1 else None
    sgd = keras.optimizers.SGD(schedule, momentum=0.9, gradient_accumulation_steps=accumulation)
    return AdaScale(sgd) if method == "AS" else sgd


def train(method, scale, seed, iterations, arguments):
    """Train once.

    Args:
        method: one of METHODS.
        scale: S.
        seed: of weights, order and shifts.
        iterations: how many steps on S batches; at most so many for AdaScale.
        arguments: the command line's.

    Returns:
        A dict with the validation accuracy, the loss on the training set, the number of iterations,
        the seconds, and for AdaScale τ and the gain of each iteration.
    """
    keras.utils.set_random_seed(seed)
    training, validation = load("digits")
    rows = shuffled(*training, batch_size=arguments.batch, seed=seed).repeat()
    schedule = falling(arguments.learning_rate, arguments.steps)
    model = build_cnn(training[0].shape[1:])
    model.compile(
        optimizer=make_optimizer(method, scale, schedule, arguments.steps, iterations),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=scale,  # a call of the training function is one iteration
    )
    tracker = GainTracker()
    is_adascale = method == "AS"
    start = time.perf_counter()
    model.fit(
        rows,
        epochs=1,
        steps_per_epoch=scale * iterations,
        verbose=0,
        callbacks=[tracker, StopAtScaleInvariantStep(arguments.steps)] if is_adascale else [],
    )
    seconds = time.perf_counter() - start
    loss, _ = model.evaluate(*training, batch_size=500, verbose=0)
    _, accuracy = model.evaluate(*validation, batch_size=300, verbose=0)
    updates = int(tf.convert_to_tensor(model.optimizer.iterations))
    return {
        "method": method,
        "scale": scale,
        "seed": seed,
        "accuracy": accuracy,
        "loss": loss,
        "iterations": updates,
        "seconds": round(seconds, 1),
        "steps": [round(values["scale_invariant_steps"], 1) for values in tracker.values],
        "gains": [round(values["gain"], 2) for values in tracker.values],
    }


def train_all(arguments):
    """Yield all runs. LSW+ takes as many steps as AdaScale took with the same S and seed."""
    for scale in arguments.scales:
        for seed in arguments.seeds:
            adascale = train("AS", scale, seed, arguments.steps, arguments)
            yield adascale
            for method, iterations in (
                ("LSW", math.ceil(arguments.steps / scale)),
                ("LSW+", adascale["iterations"]),
            ):
                yield train(method, scale, seed, iterations, arguments)


def cell(runs, name, digits):
    """Return "median (lowest..highest)" of the runs, N/A where the median diverged."""
    values = [run[name] for run in runs]
    if not math.isfinite(statistics.median(values)):
        return "N/A"
    low, median, high = (
        f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values))
    )
    return f"{median} ({low}..{high})"


def table(runs, batch):
    """Return the table in Markdown."""
    header = ["S", "batch"]
    header += [f"accuracy {method}" for method in METHODS]
    header += [f"training loss {method}" for method in METHODS]
    header += [f"iterations {method}" for method in METHODS]
    lines = [header, ["---"] * len(header)]
    for scale in sorted({run["scale"] for run in runs}):
        line = [scale, scale * batch]
        for name, digits in (("accuracy", 3), ("loss", 3), ("iterations", 0)):
            for method in METHODS:
                own = [run for run in runs if (run["method"], run["scale"]) == (method, scale)]
                line.append(cell(own, name, digits))
        lines.append(line)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def report(runs, arguments):
    """Return the table with what it was measured with, in Markdown."""
    return f"""# AdaScale against linear scaling on digits

{datetime.date.today().isoformat()}. Command: `python examples/adascale_digits.py
{" ".join(sys.argv[1:])}`. {os.cpu_count()} CPU cores, {platform.machine()}, no GPU; Python
{platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}.

Training with S = 1 takes T = {arguments.steps} steps of {arguments.batch} rows, with SGD, momentum
0.9 and the learning rate {arguments.learning_rate}, which falls to a tenth after 3T/4 steps.
AS is AdaScale; it stops when the scale-invariant step is T. LSW uses S times the learning rate in
T/S iterations, with a warm-up in the first 5/90 of them. LSW+ is LSW with as many iterations as AS.
The cells are medians over the seeds {", ".join(map(str, arguments.seeds))} (lowest..highest). The
accuracy is measured on 300 validation rows, so 0.01 is 3 rows. The loss is measured on the whole
training set. N/A means that the training diverged.

{table(runs, arguments.batch)}
"""


def save_picture(runs, path):
    """Draw the gain over the scale-invariant step, for each S, first seed."""
    from matplotlib import figure

    drawing = figure.Figure(figsize=(7, 4.2), layout="constrained")
    axes = drawing.subplots()
    for run in runs:
        if run["method"] == "AS" and run["scale"] > 1 and run["seed"] == runs[0]["seed"]:
            axes.plot(run["steps"], run["gains"], label=f"S = {run['scale']}")
    axes.set_yscale("log", base=2)
    axes.set_xlabel("scale-invariant step τ")
    axes.set_ylabel("gain ratio r")
    axes.grid(alpha=0.3)
    axes.legend()
    drawing.savefig(path, dpi=120)


def main():
    """Train, print and save."""
    arguments = parse_arguments()
    runs = []
    for run in train_all(arguments):
        runs.append(run)
        print(
            f"S = {run['scale']:3} {run['method']:5} seed {run['seed']}: accuracy "
            f"{run['accuracy']:.3f}, loss {run['loss']:.3f}, {run['iterations']} iterations, "
            f"{run['seconds']} s",
            flush=True,
        )
    print(table(runs, arguments.batch))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(runs) + "\n")
    arguments.out.with_suffix(".md").write_text(report(runs, arguments))
    save_picture(runs, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
