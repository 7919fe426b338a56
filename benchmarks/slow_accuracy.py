"""Measure the time to a target accuracy over slow links, with fewer bytes or fewer combinations.

    python benchmarks/slow_accuracy.py [--mbit 10 100 1000] [--seeds 0 1 2]

Trains the CNN of the experiment `local_steps` with `fit` on four workers with two devices each, on
the hosts of slow_links.py. Each method uses its best learning rate. For the mean of the gradients,
this script searches it in the simulation. For the other methods, it comes from the runs of that
experiment. Needs root, and the packages of experiments/. Writes
benchmarks/results/DATE-slow_accuracy.md.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import tempfile
import time

import numpy as np
import report
import slow_links

DEVICES = 2  # of each worker
TARGET = 0.95  # accuracy on the validation split
BFLOAT16 = "DeltaAdasum, k = 1, bfloat16"
# For each name: the method of the experiment `local_steps` (None averages gradients), and the
# number of local steps.
METHODS = {
    "mean": (None, 1),
    "DeltaAdasum, k = 1": ("Adasum", 1),
    BFLOAT16: ("Adasum", 1),
    **{f"local SGD, k = {k}": ("mean", k) for k in (4, 16, 64)},
    **{f"DeltaAdasum, k = {k}": ("Adasum", k) for k in (4, 16, 64)},
}


def experiment():
    """Return the experiment that has the task and the learning rates."""
    from experiments.local_steps.experiment import EXPERIMENT

    return EXPERIMENT


def learning_rates():
    """Return the best learning rate of each method."""
    from experiments.local_steps.experiment import Finals
    from experiments.results import Results

    own = experiment()
    ((dataset, epochs),), results = own.datasets, Results(own.folder / "runs.jsonl")
    finals = {
        k: Finals(own.grid(results, dataset, epochs, k), results).rates for k in own.local_steps
    }
    return {
        name: finals[k][method] if method else learning_rate_of_mean(dataset, epochs, own.search)
        for name, (method, k) in METHODS.items()
    }


def learning_rate_of_mean(dataset, epochs, search):
    """Return the best learning rate of Adam on the mean of the gradients, in the simulation."""
    from experiments.classification import Problem
    from experiments.classification.experiment import score
    from experiments.cnn.experiment import EXPERIMENT
    from experiments.local_steps.experiment import REPLICAS
    from experiments.results import Results

    problem = Problem(dataset, "adam", "decay", epochs, ("mean",))
    runs = dataclasses.replace(EXPERIMENT, problems=(problem,))
    settings = [problem.setting(REPLICAS, "mean")]
    with tempfile.TemporaryDirectory() as folder:
        results = Results(pathlib.Path(folder, "runs.jsonl"))
        while not (grid := search.grid(results, settings, score)).is_complete:
            for case in grid.cases():
                if case not in results:
                    results.append(case, runs.run(case), 0)
        return search.rate(grid.best(results, settings[0]))


def work(options):
    """Train on this worker; return what `trained` returns for each method and seed."""
    import keras
    import tensorflow as tf

    import tf_adasum
    from experiments import data
    from experiments.cnn.experiment import EXPERIMENT as CNN

    class Mean(tf_adasum.rules.AggregationRule):
        granularity = "model"

        def coefficients(self, gram):
            return tf.ones_like(gram[:, 0]) / gram.shape[-1]

    ((dataset, epochs),) = experiment().datasets
    splits, found = getattr(data, dataset)(), {}
    for name, (method, k) in METHODS.items():
        choices = {"aggregation": "mean"} if method is None else {}
        choices |= {"aggregation": Mean()} if method == "mean" else {}
        if name == BFLOAT16:
            choices["wire_dtype"] = "bfloat16"
        strategy = tf_adasum.AdasumMirroredStrategy(**choices)
        initial = CNN.model_of(dataset)
        with strategy.scope():
            model, optimizer = initial.keras(), keras.optimizers.Adam()
            if method:
                optimizer = tf_adasum.optimizers.DeltaAdasum(optimizer, local_steps=k)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, metrics=["accuracy"])
        found[name] = []
        for seed in options["seeds"]:
            model.set_weights(initial.initial(seed))
            for variable in optimizer.variables:  # resets the optimizer, but keeps its functions
                variable.assign(tf.zeros_like(variable))
            rate, target = options["rates"][name], options["target"]
            found[name].append(trained(model, splits, epochs, rate, target, seed))
    return found


def trained(model, splits, epochs, rate, target, seed):
    """Train until the target or the last epoch; return steps, seconds, bytes and the accuracy.

    The time of evaluations is not counted. The first epoch includes tracing, so the time of the
    second epoch replaces its time.
    """
    import keras

    from experiments import schedules
    from experiments.classification.problem import WARMUP
    from experiments.local_steps.experiment import BATCH, REPLICAS
    from experiments.simulation import training_loop

    rows = BATCH * REPLICAS
    steps = len(splits.train[1]) // rows
    order = training_loop.orders(len(splits.train[1]), epochs * steps, rows, seed)
    values = schedules.warmup_and_decay(rate, len(order), WARMUP)
    seconds, sent, accuracy = [], [], 0.0

    class Meter(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter(), slow_links.sent()

        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = values[len(seconds) * steps + batch]

        def on_epoch_end(self, epoch, logs=None):
            if hasattr(self.model.optimizer, "synchronize"):
                self.model.optimizer.synchronize()
            seconds.append(time.perf_counter() - self.began[0])
            sent.append(slow_links.sent() - self.began[1])

    while len(seconds) < epochs and accuracy < target:
        own = order[len(seconds) * steps :][:steps].ravel()
        batches = {"batch_size": rows, "shuffle": False, "verbose": 0}
        model.fit(*(part[own] for part in splits.train), callbacks=[Meter()], **batches)
        _, accuracy = model.evaluate(*splits.validation, batch_size=300, verbose=0)
    seconds[:1] = seconds[1:2] or seconds
    return {
        "steps": steps * len(seconds),
        "seconds": sum(seconds),
        "bytes": sum(sent),
        "accuracy": accuracy,
    }


def text_of(runs, target, value, digits):
    """Return the median and the range of a value; a dash if most runs miss the target."""
    reached = [value(run) if run["accuracy"] >= target else np.inf for run in runs]
    if not np.isfinite(median := statistics.median_high(reached)):
        return "–"
    highest = f"{max(reached):.{digits}f}" if np.isfinite(max(reached)) else "not reached"
    return f"{median:.{digits}f} ({min(reached):.{digits}f} to {highest})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=TARGET, help="validation accuracy")
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(work(arguments.options)))
        return
    if reason := slow_links.missing():
        raise SystemExit(reason)
    best = learning_rates()
    target = arguments.target
    options = json.dumps({"rates": best, "seeds": arguments.seeds, "target": target})
    found = {
        mbit: slow_links.on_links(mbit, __file__, "--options", options, devices=DEVICES)
        for mbit in arguments.mbit
    }
    rows = []
    for name, rate in best.items():
        own = [of_link[name] for of_link in found.values()]
        runs = [run for of_link in own for run in of_link]
        rows.append([name, f"{rate:g}", text_of(runs, target, lambda run: run["steps"], 0)])
        rows[-1].append(text_of(runs, target, lambda run: run["bytes"] / 1e6, 1))
        rows[-1] += [text_of(of_link, target, lambda run: run["seconds"], 1) for of_link in own]
    header = ["method", "learning rate", "steps", "MB sent"]
    report.write(
        "slow_accuracy",
        "Time to a target accuracy over slow links",
        f"{slow_links.WORKERS} workers with {DEVICES} devices each. Each worker runs on a separate "
        "host (a network namespace), and `tc tbf` limits its link in both directions. All hosts "
        "share the cores of this machine. The CNN, the data, the schedule and the batch size come "
        "from the experiment `local_steps`. The optimizer is Adam. All columns count the training "
        f"until the validation accuracy is at least {target} at the end of an epoch. A cell shows "
        f"the median (lowest to highest) of {len(arguments.seeds)} seeds. The cells for steps and "
        "MB include the runs on all links. A dash means that most runs did not reach the target. "
        "*MB sent* is what worker 0's network interface sent, with packet headers. The time of "
        "evaluations is not counted. The first epoch includes tracing, so the time of the second "
        "epoch replaces its time. *Local SGD* averages the weight changes of k steps. With k = 64, "
        "`fit` combines at the end of each epoch, which has 37 steps.\n\n"
        + report.table([*header, *(f"{mbit} Mbit/s, s" for mbit in found)], rows),
    )


if __name__ == "__main__":
    main()
