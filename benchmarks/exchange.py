"""Times the exchange of gradients: Adasum against TensorFlow's own SUM all-reduce.

    python benchmarks/exchange.py

Starts 2 and then 4 workers on this machine. In each step the workers combine gradients of known
shapes, once by TensorFlow's SUM (what `MultiWorkerMirroredStrategy` does) and once by Adasum, in
turn and in one process; a ratio is that of neighbouring steps. Runs of each kind alone give the
peak memory. Writes benchmarks/results/DATE-exchange.md.
"""

import argparse
import resource
import time

import numpy as np
import report

KINDS = ["sum", "adasum"]
WARM_UP = 3  # steps


def resnet50_shapes():
    """The 161 trainable variables of a ResNet-50 for 1000 classes: 25.6 million elements."""

    def convolution(size, inputs, outputs):
        return [[size, size, inputs, outputs], [outputs], [outputs]]  # kernel, scale, offset

    shapes = convolution(7, 3, 64)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            if block == 0:
                shapes += convolution(1, inputs, 4 * width)
            shapes += convolution(1, inputs, width)
            shapes += convolution(3, width, width)
            shapes += convolution(1, width, 4 * width)
            inputs = 4 * width
    return [*shapes, [2048, 1000], [1000]]


SHAPES = {
    "1 MB": [[250_000]],
    "16 MB": [[4_000_000]],
    "100 MB": [[25_000_000]],
    "ResNet-50, 161 variables": resnet50_shapes(),
}


def measure(name, kinds, steps, out):
    """Runs on every worker: the seconds of each step, and the peak memory in bytes."""
    import tensorflow as tf

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    random = np.random.default_rng(strategy.cluster_resolver.task_id)
    gradients = [tf.constant(random.standard_normal(s, dtype=np.float32)) for s in SHAPES[name]]
    options = {"sum": None, "adasum": strategy.gradient_reduction}

    def reduction(kind):
        def in_replica(values):
            context = tf.distribute.get_replica_context()
            on_device = [tf.identity(value) for value in values]
            return context.all_reduce("SUM", on_device, options=options[kind])

        return tf.function(lambda values: strategy.run(in_replica, args=(values,)))

    reductions = {kind: reduction(kind) for kind in KINDS}
    together = tf.constant(0.0)
    seconds = {kind: [] for kind in kinds}
    for step in range(WARM_UP + steps):
        for kind in kinds:
            reductions["sum"]([together])  # all workers start at once
            start = time.perf_counter()
            reductions[kind](gradients)  # returns when this worker has the result
            if step >= WARM_UP:
                seconds[kind].append(time.perf_counter() - start)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.save(strategy, {"seconds": seconds, "peak": peak}, out)


def run(workers, name, kinds, steps):
    arguments = ["--worker", name, "--kinds", *kinds, "--steps", str(steps)]
    return report.on_workers(workers, __file__, *arguments)


def time_row(workers, name, steps):
    seconds = run(workers, name, KINDS, steps)["seconds"]
    milliseconds = [report.quartiles(seconds[kind], scale=1000, digits=1) for kind in KINDS]
    ratios = np.divide(seconds["adasum"], seconds["sum"])
    return [workers, name, *milliseconds, report.quartiles(ratios)]


def memory_row(workers, name, runs):
    """The medians of the peaks of several runs, as every run differs by some tens of MB."""
    peaks = {
        kind: np.median([run(workers, name, [kind], 5)["peak"] for _ in range(runs)])
        for kind in KINDS
    }
    gradient_bytes = 4 * sum(int(np.prod(shape)) for shape in SHAPES[name])
    extra = (peaks["adasum"] - peaks["sum"]) / gradient_bytes
    return [workers, name, *(f"{peaks[kind] / 1e6:.0f}" for kind in KINDS), f"{extra:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--memory-runs", type=int, default=3, help="0 leaves the memory out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--kinds", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments.worker, arguments.kinds, arguments.steps, arguments.out)
        return
    times = [time_row(w, name, arguments.steps) for w in arguments.workers for name in SHAPES]
    large = list(SHAPES)[-2:]
    body = (
        "Milliseconds of a reduction, median (quartiles) of the steps on worker 0; the ratio is "
        "that of neighbouring steps.\n\n"
        + report.table(["workers", "gradients", "sum", "adasum", "adasum / sum"], times)
    )
    runs = arguments.memory_runs
    if runs:
        memory = [memory_row(w, name, runs) for w in arguments.workers for name in large]
        body += (
            f"\n\nPeak memory of a worker's process in MB, median of {runs} runs of each kind; the "
            "last column is the difference in units of the gradients' bytes.\n\n"
            + report.table(["workers", "gradients", "sum", "adasum", "extra"], memory)
        )
    report.write("exchange", "Exchange: Adasum against TensorFlow's SUM all-reduce", body)


if __name__ == "__main__":
    main()
