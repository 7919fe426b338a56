"""Measure how much time AdaScale adds to a step of `fit`.

    python benchmarks/adascale_time.py

Two workers, which average gradients, train the same model with SGD and with SGD inside AdaScale, in
turn. The models are the CNN of `make demo` and a model of 25 million parameters. Writes
benchmarks/results/DATE-adascale_time.md.
"""

import argparse
import pathlib
import sys

import numpy as np
import report
import step_time
from fit_steps import WARM_UP, time_in_turn

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "examples"))

MODELS = {  # rows of a global batch, steps of a round, rounds
    "demo": (32, 100, 31),
    "25 million parameters": (step_time.ROWS, 6, 15),
}


def optimizers():
    """Return functions that create SGD, and SGD inside AdaScale."""
    import keras

    import tf_adasum

    def sgd():
        return keras.optimizers.SGD(0.001, momentum=0.9)

    return {"SGD": sgd, "AdaScale": lambda: tf_adasum.optimizers.AdaScale(sgd())}


def build_demo(strategy, optimizer):
    """Return the demo's model, compiled."""
    import keras
    from train_digits import build_cnn

    with strategy.scope():
        model = build_cnn([8, 8, 1])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer(), loss=loss)
    return model


def measure(name, out):
    """Return the seconds of each step with each optimizer, on every worker."""
    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy(aggregation="mean")
    rows, steps, rounds = MODELS[name]
    if name == "demo":
        build, (x, y) = build_demo, demo_rows(rows * (WARM_UP + steps))
    else:
        build, (x, y) = step_time.build, step_time.random_rows(rows * (WARM_UP + steps))
    models = {kind: build(strategy, optimizer) for kind, optimizer in optimizers().items()}
    report.save(strategy, time_in_turn(models, x, y, batch_size=rows, rounds=rounds), out)


def demo_rows(count):
    """Return `count` digits, which repeat."""
    from train_digits import load

    (images, labels), _ = load("digits")
    return np.resize(images, [count, *images.shape[1:]]), np.resize(labels, [count])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        measure(arguments.model[0], arguments.out)
        return
    lines = []
    for name in arguments.model:
        seconds = report.on_workers(arguments.workers, __file__, "--model", name)
        per_round = {kind: np.median(own, axis=1) for kind, own in seconds.items()}
        ratios = per_round["AdaScale"] / per_round["SGD"]
        milliseconds = [report.quartiles(per_round[kind], 1000) for kind in ("SGD", "AdaScale")]
        ratio = report.quartiles(ratios, digits=3)
        lines.append([name, *MODELS[name], *milliseconds, ratio])
    report.write(
        "adascale_time",
        "Steps of `fit`: AdaScale around SGD against SGD",
        f'{arguments.workers} workers, aggregation="mean", SGD with momentum. Milliseconds of a '
        "step on worker 0: medians of the steps in each round, in which the two take turns, here "
        "their median (quartiles).\n\n"
        + report.table(
            ["model", "rows", "steps", "rounds", "SGD", "AdaScale", "AdaScale / SGD"], lines
        ),
    )


if __name__ == "__main__":
    main()
