"""Measure exchanges on several hosts with several workers each.

    python benchmarks/hosts.py [--mbit 100 1000 10000] [--steps 10]

Each host is a network namespace with a limited link (see slow_links.py); needs root. Writes
benchmarks/results/DATE-hosts.md.
"""

import argparse
import json
import os
import pathlib

import numpy as np
import report
import slow_links

WORKERS = 8
TOPOLOGIES = [(2, 4), (4, 2)]  # hosts, workers on each host
SIZES = {"1 MB": 250_000, "4 MB": 1_000_000, "16 MB": 4_000_000}  # float32 numbers
FLAT = "[8]; ucx"
DEFAULT = "adasum; ucx"
SUM = "sum"


def measured(mbit, hosts, workers_per_host, kinds, steps):
    """Return the median seconds of each size and kind on worker 0."""
    cases = [([[elements]], kinds) for elements in SIZES.values()]
    found = slow_links.on_links(
        mbit,
        str(pathlib.Path(__file__).with_name("exchange_worker.py")),
        *("--task", "times", "--transport", "ucx"),
        *("--arguments", json.dumps({"cases": cases, "steps": steps})),
        hosts=hosts,
        workers_per_host=workers_per_host,
        burst_ms=1,
    )
    return {
        (size, kind): np.array(seconds["seconds"])
        for size, by_kind in zip(SIZES, found, strict=True)
        for kind, seconds in by_kind.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    if reason := slow_links.missing():
        raise SystemExit(reason)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    rows = []
    for hosts, per_host in TOPOLOGIES:
        for mbit in arguments.mbit:
            found = measured(mbit, hosts, per_host, [FLAT, DEFAULT, SUM], arguments.steps)
            for size in SIZES:
                flat, followed = found[size, FLAT], found[size, DEFAULT]
                rows.append([f"{hosts} × {per_host}", mbit, size])
                rows[-1] += [report.quartiles(own, 1000, 1) for own in (flat, followed)]
                rows[-1] += [report.quartiles(followed / flat)]
                rows[-1] += [report.quartiles(found[size, SUM], 1000, 1)]
    header = ["hosts × workers", "Mbit/s", "gradients", "[8], ms"]
    report.write(
        "hosts",
        "Exchanges on several hosts with several workers each",
        f"{WORKERS} workers with one device each. Each host is a network namespace, and `tc tbf` "
        "limits its link in both directions. All hosts share the cores of this machine. The "
        "gradients are one variable of float32. Milliseconds of one exchange over UCX, median "
        "(quartiles) of the steps on worker 0. *[8]*: one level with all workers. *Default*: the "
        "plan that the strategy chooses, which follows the hosts. *Default / [8]* is of "
        "neighbouring steps. *Sum* is TensorFlow's all-reduce over gRPC.\n\n"
        + report.table([*header, "default, ms", "default / [8]", "sum, ms"], rows),
    )


if __name__ == "__main__":
    main()
