"""Time the exchange of gradients: UCX, TensorFlow's collectives, and Horovod if it is installed.

    python benchmarks/exchange.py            writes benchmarks/results/DATE-exchange_transport.md
    python benchmarks/exchange.py --rounding   what 16 bits on the wire round: DATE-exchange.md

Starts 2 and then 4 workers on this machine. In each step the workers combine gradients of known
shapes with TensorFlow's SUM (as `MultiWorkerMirroredStrategy` does) and with Adasum, in turn and in
one process. The workers run exchange_worker.py.
"""

import argparse
import os
from unittest import mock

import horovod_worker
import numpy as np
import report
from exchange_worker import WIRE_DTYPES, on_workers
from generated_tables import ROUNDING

from experiments.comparison import with_range

# The values of UCX_TLS: for processes on one host, and for processes on several hosts.
TRANSPORTS = {"shared memory": "posix,cma,self", "TCP": "tcp,self"}
UCX = "adasum; ucx"
KINDS = ["sum", "adasum", f"{UCX}; packed", UCX]
ALONE = f"{UCX}, alone"
HOROVOD = "Horovod's Adasum"
ROUNDS = 2

PLANS = {2: ["[2]"], 4: ["[4]", "[2, 2]"]}


def resnet50_shapes():
    """Return the shapes of the 161 variables of a ResNet-50 with 1000 classes, 25.6 M elements."""

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
    "64 KB": [[16_000]],
    "256 KB": [[64_000]],
    "4 MB": [[1_000_000]],
    "1 MB": [[250_000]],
    "16 MB": [[4_000_000]],
    "100 MB": [[25_000_000]],
    "ResNet-50, 161 variables": resnet50_shapes(),
}


def rounding_rows(workers, scales):
    """Yield a row with the relative errors of each plan and wire dtype."""
    kinds = [f"{plan}; {dtype}" for plan in PLANS[workers] for dtype in ("adasum", *WIRE_DTYPES)]
    errors = on_workers(workers, "rounding", kinds=kinds, scales=scales)
    for kind, own in errors.items():
        plan, dtype = kind.split("; ")
        dtype = "float32" if dtype == "adasum" else dtype
        yield [workers, plan, dtype, *(f"{error:.1e}" for error in own)]


def compare_rounding():
    """Write the report on the rounding of every dtype on the wire."""
    scales = [1.0, 1e-6]
    header = ["workers", "radix plan", "on the wire", *(f"scale {scale:g}" for scale in scales)]
    rows = [row for workers in PLANS for row in rounding_rows(workers, scales)]
    body = (
        f"{ROUNDING}\n\nRelative error ‖result - exact‖ / ‖exact‖ of Adasum of float32 "
        "gradients, scale · (mean + noise of each replica), 10⁶ elements, all standard normal. "
        f"Exact is Adasum of the same gradients in float64.\n\n{report.table(header, rows)}"
    )
    report.write("exchange", "Rounding of gradients in an exchange", body)


def over_each_transport(workers, shapes, way, steps):
    """Return for each of the gradients a dict from kinds to the measurements of a round."""

    def of_kinds(kinds):
        cases = [(own, kinds) for own in shapes.values()]
        return on_workers(workers, "times", transport="ucx", cases=cases, steps=steps)

    with mock.patch.dict(os.environ, {"UCX_TLS": TRANSPORTS[way]}):
        found, alone = of_kinds(KINDS), of_kinds([UCX])
    for own, by_kind, by_ucx in zip(shapes.values(), found, alone, strict=True):
        by_kind[ALONE] = by_ucx[UCX]
        if horovod_worker.is_available():
            theirs = horovod_worker.on_workers(workers, way, shapes=own, steps=steps)
            by_kind["Horovod's sum"] = {"seconds": theirs["sum"]}
            by_kind[HOROVOD] = {"seconds": theirs["adasum"]}
    return found


def transport_rows(workers, shapes, steps):
    """Yield one row for each of the gradients, each transport and each kind."""
    for way in TRANSPORTS:
        rounds = [over_each_transport(workers, shapes, way, steps) for _ in range(ROUNDS)]
        for name, own in zip(shapes, zip(*rounds, strict=True), strict=True):
            for kind in own[0]:
                seconds = [each[kind]["seconds"] for each in own]
                row = [workers, name, way, kind, report.quartiles(np.ravel(seconds), 1000, 1)]
                for other in ("adasum", HOROVOD):
                    row.append(ratio(own, kind, other) if other in own[0] else "")
                cpu = [each[kind].get("cpu_seconds", []) for each in own]
                yield [*row, f"{1000 * np.median(cpu):.0f}" if np.size(cpu) else ""]


def ratio(rounds, kind, other):
    """Return the ratio of the medians in each round: its median and its range."""
    medians = ([np.median(each[name]["seconds"]) for name in (kind, other)] for each in rounds)
    return with_range([own / others for own, others in medians], 2)


def compare_transports(shapes, steps, counts):
    """Write the report on UCX, TensorFlow's collectives and Horovod."""
    header = ["workers", "gradients", "way", "kind", "milliseconds"]
    header += ["kind / adasum", "kind / Horovod's Adasum", "CPU ms"]
    rows = [row for workers in counts for row in transport_rows(workers, shapes, steps)]
    body = (
        "Kinds: TensorFlow's SUM; Adasum over TensorFlow's collectives; Adasum over UCX, of packed "
        "buckets and of the gradients' own memory, with the same bits; Horovod 0.28.1 over Open "
        "MPI, where it is installed. Each worker runs on its own core; four workers share two. In "
        "each step the kinds of one package take turns, in one process; “alone” is a process that "
        "exchanges nothing over TensorFlow's collectives, as in use, and as Horovod's. All "
        f"of these take turns in {ROUNDS} rounds. Milliseconds of a reduction, median "
        "(quartiles) of all steps on worker 0; ratios of a round's medians, median (lowest "
        "to highest) of the rounds; CPU milliseconds of worker 0's process, median.\n\n"
        + report.table(header, rows)
    )
    report.write("exchange_transport", "Exchange: UCX, TensorFlow's collectives, Horovod", body)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounding", action="store_true", help="16 bits on the wire")
    parser.add_argument("--workers", type=int, nargs="+", default=list(PLANS))
    parser.add_argument("--gradients", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.rounding:
        compare_rounding()
    else:
        shapes = {name: SHAPES[name] for name in arguments.gradients}
        compare_transports(shapes, arguments.steps, arguments.workers)


if __name__ == "__main__":
    main()
