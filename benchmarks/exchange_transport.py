"""What `benchmarks/exchange.py --transport` measures: UCX against TensorFlow's collectives."""

import os
from unittest import mock

import numpy as np
import report
from exchange_worker import on_workers

# What UCX_TLS is set to: how a host's own processes reach each other, and how hosts do.
WAYS = {"shared memory": "posix,cma,self", "TCP": "tcp,self"}
KINDS = ["sum", "adasum", "adasum; ucx; packed", "adasum; ucx"]


def rows(workers, shapes, steps):
    """One row for each of the gradients, the ways and the kinds."""
    for way, transports in WAYS.items():
        cases = [(own, KINDS) for own in shapes.values()]
        with mock.patch.dict(os.environ, {"UCX_TLS": transports}):
            arguments = {"cases": cases, "steps": steps}
            measured, _ = on_workers(workers, 1, "times", transport="ucx", **arguments)
        for name, by_kind in zip(shapes, measured, strict=True):
            for kind in KINDS:
                seconds = np.array(by_kind[kind]["seconds"])
                ratios = [report.quartiles(seconds / by_kind[of]["seconds"]) for of in KINDS[:2]]
                cpu = 1000 * np.median(by_kind[kind]["cpu_seconds"])
                milliseconds = report.quartiles(seconds, scale=1000, digits=1)
                yield [workers, name, way, kind, milliseconds, *ratios, f"{cpu:.0f}"]


def main(shapes, steps, counts):
    """Write the report."""
    header = ["workers", "gradients", "UCX's way", "kind", "milliseconds"]
    header += ["kind / sum", "kind / adasum", "CPU ms"]
    body = (
        "Kinds: TensorFlow's SUM; Adasum over TensorFlow's collectives; Adasum over UCX, of packed "
        "buckets and of the gradients' own memory, with the same bits. In each step the kinds take "
        "turns, in one process. Milliseconds of a reduction, median (quartiles) of the steps on "
        "worker 0; ratios are those of neighbouring steps; CPU milliseconds of worker 0's process, "
        "median.\n\n"
        + report.table(header, [row for each in counts for row in rows(each, shapes, steps)])
    )
    report.write("exchange_transport", "Exchange: UCX against TensorFlow's collectives", body)
