"""Time the steps of the experiments' models in `fit` on 1, 2 and 4 workers, under every rule.

    python benchmarks/experiment_steps.py

All models of one topology take turns in one process per worker. Writes
benchmarks/results/DATE-experiment_steps.md, and experiment_steps.json in the same folder, from
which `python -m experiments report time_to_accuracy` makes its table.
"""

import argparse
import json
import pathlib

import numpy as np
import report
from report import WARM_UP, time_in_turn

# Workers x devices of each.
TOPOLOGIES = ((1, 1), (2, 2), (4, 1), (2, 4), (4, 2))
# Rows of a replica; optimizer; rules.
TASKS = {
    "cnn": (4, "momentum", ("mean", "adasum", "adasum of steps")),
    "word2vec": (16, "sgd", ("mean", "adasum")),
    "transformer": (2, "lamb", ("mean", "adasum of steps")),
}
FILE = report.RESULTS / "experiment_steps.json"


def model_of(task):
    """Return the experiment's model, and its loss."""
    import keras

    from experiments import data
    from experiments.models.cnn import CNN
    from experiments.models.skipgram import SkipGram, loss_of_pairs
    from experiments.models.transformer import Transformer

    models = {
        "cnn": CNN(),
        "word2vec": SkipGram(3000),
        "transformer": Transformer(len(data.ALPHABET)),
    }
    classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return models[task], loss_of_pairs if task == "word2vec" else classes


def rows_of(model, count):
    """Return random inputs and labels."""
    random = np.random.default_rng(0)
    return tuple(
        random.integers(0, 10, [count, *own.shape]).astype(own.dtype.as_numpy_dtype)
        if own.dtype.is_integer
        else random.random([count, *own.shape], np.float32)
        for own in model.example
    )


def compiled(strategy, task, rule):
    """Return a Keras model of a task with the optimizer of a rule."""
    import keras

    import tf_adasum

    model, loss = model_of(task)
    optimizers = {
        "momentum": lambda: keras.optimizers.SGD(0.001, momentum=0.9),
        "sgd": lambda: keras.optimizers.SGD(0.001),
        "lamb": lambda: tf_adasum.optimizers.LAMB(0.001),
    }
    keras.utils.set_random_seed(0)
    with strategy.scope():
        optimizer = optimizers[TASKS[task][1]]()
        if rule == "adasum of steps":
            optimizer = tf_adasum.optimizers.DeltaAdasum(optimizer)
        made = model.keras()
        made.compile(optimizer=optimizer, loss=loss)
    return made


def measure(rounds, steps, out):
    """Return for each task and rule the seconds of each step of each round, on every worker."""
    import tf_adasum

    strategies = {
        aggregation: tf_adasum.AdasumMirroredStrategy(aggregation=aggregation)
        for aggregation in ("mean", "adasum")
    }
    first = strategies["mean"]
    seconds = {}
    for task, (batch, _, rules) in TASKS.items():
        rows = batch * first.num_replicas_in_sync
        models = {
            rule: compiled(strategies["mean" if rule == "mean" else "adasum"], task, rule)
            for rule in rules
            if rows > batch or rule == "mean"  # one replica has nothing to combine
        }
        x, y = rows_of(model_of(task)[0], rows * (WARM_UP + steps))
        seconds[task] = time_in_turn(models, x, y, batch_size=rows, rounds=rounds)
    report.save(first, seconds, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--topologies", nargs="+", default=["x".join(map(str, own)) for own in TOPOLOGIES]
    )
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=pathlib.Path, default=FILE, help="where the numbers go")
    arguments = parser.parse_args()
    if arguments.out:
        measure(arguments.rounds, arguments.steps, arguments.out)
        return
    options = ["--rounds", str(arguments.rounds), "--steps", str(arguments.steps)]
    lines, rows = [], []
    for topology in arguments.topologies:
        workers, devices = map(int, topology.split("x"))
        found = report.on_workers(workers, __file__, *options, devices=devices)
        for task, by_rule in found.items():
            for rule, seconds in by_rule.items():
                per_round = np.median(seconds, axis=1)
                low, median, high = np.percentile(per_round, [25, 50, 75]).round(6).tolist()
                line = {"task": task, "rule": rule, "topology": topology}
                lines.append(line | {"seconds": median, "quartiles": [low, high]})
                rows.append([task, topology, rule, report.quartiles(per_round, 1000, 1)])
    measured = {"machine": report.this_machine(), "commit": report.commit(), "steps": lines}
    arguments.file.write_text(json.dumps(measured, indent=1) + "\n")
    batches = ", ".join(f"{task} {batch}" for task, (batch, _, _) in TASKS.items())
    report.write(
        "experiment_steps",
        "Steps of the experiments' models in `fit`",
        f"Rows of each replica: {batches}. Topologies are workers x devices of each. Milliseconds "
        f"of a step on worker 0: medians of {arguments.steps} steps in each of {arguments.rounds} "
        "rounds that take turns, here their median (quartiles).\n\n"
        + report.table(["task", "topology", "rule", "ms a step"], rows),
    )


if __name__ == "__main__":
    main()
