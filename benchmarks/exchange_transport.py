"""Compare UCX, TensorFlow's collectives and Horovod, for `benchmarks/exchange.py --transport`."""

import os
from unittest import mock

import horovod_worker
import numpy as np
import report
from exchange_worker import on_workers

# The values of UCX_TLS: for processes on one host, and for processes on several hosts.
TRANSPORTS = {"shared memory": "posix,cma,self", "TCP": "tcp,self"}
UCX = "adasum; ucx"
KINDS = ["sum", "adasum", f"{UCX}; packed", UCX]
ALONE = f"{UCX}, alone"
HOROVOD = "Horovod's Adasum"
ROUNDS = 2


def measured(workers, shapes, way, steps):
    """Return for each of the gradients a dict from kinds to the measurements of a round."""

    def of_kinds(kinds):
        cases = [(own, kinds) for own in shapes.values()]
        return on_workers(workers, 1, "times", transport="ucx", cases=cases, steps=steps)[0]

    with mock.patch.dict(os.environ, {"UCX_TLS": TRANSPORTS[way]}):
        found, alone = of_kinds(KINDS), of_kinds([UCX])
    for own, by_kind, by_ucx in zip(shapes.values(), found, alone, strict=True):
        by_kind[ALONE] = by_ucx[UCX]
        if horovod_worker.is_available():
            theirs = horovod_worker.on_workers(workers, way, "times", shapes=own, steps=steps)
            by_kind["Horovod's sum"] = {"seconds": theirs["sum"]}
            by_kind[HOROVOD] = {"seconds": theirs["adasum"]}
    return found


def rows(workers, shapes, steps):
    """Yield one row for each of the gradients, each transport and each kind."""
    for way in TRANSPORTS:
        rounds = [measured(workers, shapes, way, steps) for _ in range(ROUNDS)]
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
    medians = [
        np.median(each[kind]["seconds"]) / np.median(each[other]["seconds"]) for each in rounds
    ]
    return f"{np.median(medians):.2f} ({min(medians):.2f}..{max(medians):.2f})"


def main(shapes, steps, counts):
    """Write the report."""
    header = ["workers", "gradients", "way", "kind", "milliseconds"]
    header += ["kind / adasum", "kind / Horovod's Adasum", "CPU ms"]
    body = (
        "Kinds: TensorFlow's SUM; Adasum over TensorFlow's collectives; Adasum over UCX, of packed "
        "buckets and of the gradients' own memory, with the same bits; Horovod 0.28.1 over Open "
        "MPI, where it is installed. Each worker runs on its own core; four workers share two. In "
        "each step the kinds of one package take turns, in one process; “alone” is a process that "
        "exchanges nothing over TensorFlow's collectives, as in use, and as Horovod's. All "
        f"of these take turns in {ROUNDS} rounds. Milliseconds of a reduction, median "
        "(quartiles) of all steps on worker 0; ratios of a round's medians, median (lowest.."
        "highest) of the rounds; CPU milliseconds of worker 0's process, median.\n\n"
        + report.table(header, [row for each in counts for row in rows(each, shapes, steps)])
    )
    report.write("exchange_transport", "Exchange: UCX, TensorFlow's collectives, Horovod", body)
