"""AdaCons against the mean: the linear regression of its authors, in a custom training loop.

    python examples/adacons_linear_regression.py

1000 weights w, inputs x uniform in [0, 1), target 0, so the loss is ``½ mean((x·w)²)`` and the
optimum w = 0. The Hessian ``I/12 + 11ᵀ/4`` has one eigenvalue that is 3000 times the others: all
gradients lie almost along one direction, and w zigzags across it. A worker's gradient is the mean
over two mini-batches, so that 1000 iterations are 500 updates ``w ← w - η d``, where d combines the
workers' gradients. Two steps η are offered:

    distance   η = <d, w> / ‖d‖²                minimizes ‖w - η d‖, the distance to the optimum
    loss       η = Σ (x·w)(x·d) / Σ (x·d)²      minimizes the loss on the rows that made d

The authors take the first, which needs to know the optimum; real training does not. Neither depends
on the length of d. The workers are logical CPU devices of this process.

Reference: Choukroun, Azoulay, Kisilev, arXiv 2411.03742, and https://github.com/yoniLc/AdaCons.
"""

import argparse
import itertools
import pathlib
import statistics
import sys
import time

import tensorflow as tf

import tf_adasum
from tf_adasum import rules

DIMENSION = 1000
ACCUMULATED = 2  # mini-batches in a gradient

# Of (batch, workers): the mean, AdaCons.
PUBLISHED = {
    (128, 8): ("33.4", "1.27e-05"),
    (128, 32): ("33.4", "1.98e-08"),
    (2048, 8): ("49.3", "52.4"),
    (2048, 32): ("49.3", "1.48e-08 (iteration 300)"),
}

HEADER = ["step", "batch", "workers", "mean", "published", "AdaCons", "published"]
NOTES = """Published: the README of the authors' repository, one run each, the loss on worker 0's
last mini-batch. Step "distance" is theirs: η = <d, w> / ‖d‖² minimizes the distance to the optimum,
which it needs to know. Step "loss" is the exact line search on the rows that made the direction.
Ours has the momentum of AdaCons by rank, their script by the sorting permutation."""


def train(strategy, *, batch, iterations, step, seed):
    """Return the last loss, over the rows of all workers, before the last update."""
    replicas = strategy.num_replicas_in_sync
    # The mean over mini-batches of one size is the mean over all their rows.
    rows = ACCUMULATED * batch // replicas
    with strategy.scope():
        initial = tf.random.stateless_uniform([DIMENSION], [seed, -1], minval=-5, maxval=5)
        weights = tf.Variable(initial, name="weights")
    reduction = strategy.gradient_reduction_of([weights])  # with AdaCons' momentum, from its start

    def replica_step(update):
        context = tf.distribute.get_replica_context()
        key = [seed, update * replicas + context.replica_id_in_sync_group]
        x = tf.random.stateless_uniform([rows, DIMENSION], key)
        with tf.GradientTape() as tape:
            prediction = tf.linalg.matvec(x, weights)
            loss = tf.reduce_mean(tf.square(prediction)) / 2
        gradients = tape.gradient(loss, [weights])
        [direction] = context.all_reduce("SUM", gradients, options=reduction)
        along = tf.linalg.matvec(x, direction)
        return loss, direction, tf.reduce_sum(prediction * along), tf.reduce_sum(along * along)

    def reduce(values, how="SUM"):
        return strategy.reduce(how, values, axis=None)

    @tf.function
    def loop():
        loss = tf.constant(0.0)
        for update in tf.range(iterations // ACCUMULATED):
            losses, directions, numerator, denominator = strategy.run(replica_step, args=(update,))
            loss = reduce(losses, "MEAN")
            direction = strategy.experimental_local_results(directions)[0]  # the same on all
            if step == "loss":
                eta = reduce(numerator) / reduce(denominator)
            else:
                eta = tf.tensordot(direction, weights, 1) / tf.reduce_sum(direction**2)
            weights.assign_sub(eta * direction)
        return loss

    # Traced anew for each training, on purpose: a call would warn of it.
    return float(loop.get_concrete_function()())


def measure(arguments, step, batch, workers):
    """Return one row of the table: AdaCons and the mean, ours and the published ones."""
    row = [step, batch, workers]
    published = PUBLISHED.get((batch, workers), ("", "")) if step == "distance" else ("", "")
    # The step undoes a factor 1/N: "sum" stands for the mean, and needs no collectives here.
    adacons = rules.AdaCons(momentum=0.99, rescale=False)
    for rule, theirs in zip(["sum", adacons], published, strict=True):
        devices = [f"CPU:{i}" for i in range(workers)]
        strategy = tf_adasum.AdasumMirroredStrategy(devices, aggregation=rule)
        settings = {"batch": batch, "iterations": arguments.iterations, "step": step}
        losses = [train(strategy, **settings, seed=seed) for seed in arguments.seed]
        low, high = min(losses), max(losses)
        row += [f"{statistics.median(losses):.2e} ({low:.1e} to {high:.1e})", theirs]
    return row


def markdown(row):
    """Return a line of a Markdown table."""
    return "| " + " | ".join(map(str, row)) + " |"


def save_report(path, table, arguments):
    """Write the table with what it was measured on, as the benchmarks do."""
    root = pathlib.Path(__file__).resolve().parent.parent
    sys.path.insert(0, str(root / "benchmarks"))
    import report

    title = "AdaCons against the mean on the linear regression of its authors"
    command = " ".join(["python examples/adacons_linear_regression.py", *sys.argv[1:]])
    path.write_text(
        f"# {title}\n\n{time.strftime('%Y-%m-%d')}, commit {report.commit()}. "
        f"Command: `{command}`.\n\nMachine: {report.this_machine()}. "
        f"The workers are logical CPU devices of one process.\n\nThe loss after "
        f"{arguments.iterations} iterations ({arguments.iterations // ACCUMULATED} updates), over "
        f"the rows of all workers: median (lowest to highest) of the seeds "
        f"{', '.join(map(str, arguments.seed))}.\n\n{table}\n\n{NOTES}\n"
    )


def main():
    """Measure, print the table, and save the report where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--batch", type=int, nargs="+", default=[128], help="of all workers")
    parser.add_argument("--step", nargs="+", default=["distance"], choices=["distance", "loss"])
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="4 workers, 200 iterations, one seed")
    parser.add_argument("--report", type=pathlib.Path, metavar="FILE.md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workers, arguments.iterations, arguments.seed = [4], 200, [0]

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * max(arguments.workers)
    )
    table = [markdown(HEADER), markdown(["---"] * len(HEADER))]
    print(*table, sep="\n", flush=True)
    for case in itertools.product(arguments.step, arguments.batch, arguments.workers):
        table.append(markdown(measure(arguments, *case)))
        print(table[-1], flush=True)
    if arguments.report:
        save_report(arguments.report, "\n".join(table), arguments)


if __name__ == "__main__":
    main()
