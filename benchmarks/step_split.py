"""Measure how long a step of a small model computes, exchanges gradients and waits.

    python benchmarks/step_split.py

The workers train with Adasum over UCX and are bound to the cores:

- compute: a step of `fit` in one process on one core, without a strategy, times the number of
  workers that share a core;
- exchange: the same gradients in a loop in one graph, where all workers arrive together;
- waiting: the time in collectives (`StragglerReport`, 50 samples a second) less the exchange;
- rest: what is left of the step. It is negative if a worker computes while it waits, or if another
  worker computes on the same core in that time.

Writes benchmarks/results/DATE-step_split.md.
"""

import argparse
import contextlib
import json
import os
import pathlib
import time

import frameworks
import numpy as np
import report

STEPS_PER_EPOCH = {"small": 400, "1 MB": 400, "4 MB": 200}
WORKERS = (2, 4)
LOOPS, EXCHANGES = 8, 100
PARTS = ("step", "compute", "exchange", "waiting", "rest")


def step_of_fit(model, size, workers, epochs, *callbacks):
    """Return the milliseconds of a step, the median of all epochs but the first; and the logs."""
    import keras

    rows = frameworks.ROWS[size] * workers
    steps, starts, seconds = STEPS_PER_EPOCH[size], [], []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: starts.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: seconds.append(time.perf_counter() - starts[-1]),
    )
    x, y = frameworks.rows_of(size, rows * steps)
    options = {"batch_size": rows, "shuffle": False, "verbose": 0, "epochs": epochs}
    history = model.fit(x, y, callbacks=[clock, *callbacks], **options).history
    return 1000 * np.median(seconds[1:]) / steps, history


def exchanges(strategy, model, count, loops):
    """Return the seconds of one exchange of the model's gradients in each of several loops."""
    import tensorflow as tf

    gradients = [tf.random.normal(v.shape) for v in model.trainable_variables]
    options = strategy.gradient_reduction

    def combine(*own):
        return tf.distribute.get_replica_context().all_reduce("SUM", own, options=options)

    @tf.function
    def loop():
        own = gradients
        for _ in tf.range(count):
            own = list(strategy.run(combine, args=tuple(own)))
        return own[0]

    loop().numpy()
    seconds = []
    for _ in range(loops):
        start = time.perf_counter()
        loop().numpy()
        seconds.append((time.perf_counter() - start) / count)
    return seconds


def worker(workers, out):
    """Measure on one of several workers, or in one process on one core."""
    if workers == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        models = (
            (size, frameworks.compiled(size, contextlib.nullcontext, unchanged))
            for size in STEPS_PER_EPOCH
        )
        measured = {size: {"step": step_of_fit(model, size, 1, 3)[0]} for size, model in models}
        pathlib.Path(out).write_text(json.dumps(measured))
        return
    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy(transport="ucx")
    measured = {}
    for size in STEPS_PER_EPOCH:
        model = frameworks.compiled(size, strategy.scope, unchanged)
        step, _ = step_of_fit(model, size, workers, 3)
        _, logs = step_of_fit(model, size, workers, 4, tf_adasum.callbacks.StragglerReport())
        collectives = [logs[f"waiting_ms/worker_{rank}"][1:] for rank in range(workers)]
        measured[size] = {
            "step": step,
            "collectives": np.median(collectives),
            "exchange": 1000 * np.median(exchanges(strategy, model, EXCHANGES, LOOPS)),
        }
    report.save(strategy, measured, out)


def unchanged(optimizer):
    return optimizer


def parts_of(own, alone, workers_per_core):
    """Return the parts of a step; `workers_per_core` workers run on one core."""
    parts = {
        "step": own["step"],
        "compute": workers_per_core * alone["step"],
        "exchange": own["exchange"],
    }
    parts["waiting"] = own["collectives"] - own["exchange"]
    parts["rest"] = parts["step"] - sum(parts[name] for name in PARTS[1:-1])
    return parts


def rows(found):
    """Yield a row of the table for each number of workers and each model."""
    for count in WORKERS:
        workers_per_core = -(-count // os.cpu_count())
        for size in STEPS_PER_EPOCH:
            turns = [
                parts_of(own[size], alone[size], workers_per_core)
                for own, alone in zip(found[count], found[1], strict=True)
            ]
            yield [count, size] + [
                median_and_range([turn[name] for turn in turns]) for name in PARTS
            ]


def median_and_range(values):
    return f"{np.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, help="this is one of so many workers")
    parser.add_argument("--out")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.workers:
        worker(arguments.workers, arguments.out)
        return
    found = {count: [] for count in (1, *WORKERS)}
    for _ in range(arguments.turns):
        for count, turns in found.items():
            turns.append(report.on_workers(count, __file__, "--workers", str(count)))
            print(count, turns[-1], flush=True)
    report.write(
        "step_split",
        "The parts of a step of a small model",
        "Milliseconds of a step of `fit` with Adasum over UCX, "
        f"{frameworks.ROWS['small']} rows of each worker, SGD; median (lowest..highest) of "
        f"{arguments.turns} turns. *Small*: a CNN of 13,706 parameters; *1 MB* and *4 MB*: dense "
        "models of so many bytes. The workers are bound to the cores. *Compute*: a step of `fit` "
        "in one process on one core, times the number of workers that share a core. *Exchange*: "
        "the same gradients in a loop, where all workers arrive together. *Waiting*: the time in "
        "collectives (50 samples a second), less the exchange. *Rest*: what is left of the step. "
        "It is negative if a worker computes while it waits, or if another worker computes on the "
        "same core in that time.\n\n"
        + report.table(["workers", "model", *(f"{name}, ms" for name in PARTS)], rows(found)),
    )


if __name__ == "__main__":
    main()
