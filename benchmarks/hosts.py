"""Measure exchanges on several hosts with several workers each, and compare them with the estimate.

    python benchmarks/hosts.py [--mbit 100 1000 10000] [--steps 10]

Each host is a network namespace with a limited link (see slow_links.py); needs root. The constants
α, β and γ are fitted to the same workers on one host, and β_h comes from the rate of the link.
Writes benchmarks/results/DATE-hosts.md.
"""

import argparse
import json
import os
import pathlib

import exchange_fit
import numpy as np
import report
import slow_links

WORKERS = 8
TOPOLOGIES = [(2, 4), (4, 2)]  # hosts, workers on each host
SIZES = {"1 MB": 250_000, "4 MB": 1_000_000, "16 MB": 4_000_000}  # float32 numbers
PLANS = [[8], [4, 2], [2, 4], [2, 2, 2]]
ONE_HOST_MBIT = 10_000  # the link is not used
FLAT = "[8]; ucx"
DEFAULT = "adasum; ucx"
SUM = "sum"
ALLOWED = 0.25  # relative error of an estimate


def measured(mbit, hosts, workers_per_host, kinds, steps):
    """Return the median seconds of each size and kind on worker 0."""
    cases = [([[elements]], kinds) for elements in SIZES.values()]
    found = slow_links.on_links(
        mbit,
        str(pathlib.Path(__file__).with_name("exchange_worker.py")),
        *("--devices", "1", "--task", "times", "--transport", "ucx"),
        *("--arguments", json.dumps({"cases": cases, "steps": steps})),
        hosts=hosts,
        workers_per_host=workers_per_host,
        burst_ms=1,
    )
    return {
        (size, kind): np.array(seconds["seconds"])
        for size, by_kind in zip(SIZES, found["measured"], strict=True)
        for kind, seconds in by_kind.items()
    }


def fitted(steps):
    """Return the `CostModel` of the workers on one host."""
    from tf_adasum.aggregation import cost_model

    kinds = [f"{plan}; ucx" for plan in PLANS]
    seconds = measured(ONE_HOST_MBIT, 1, WORKERS, kinds, steps)
    points = [(size, plan) for size in SIZES for plan in PLANS]
    amounts = [cost_model.amounts(plan, 4 * SIZES[size], 1) for size, plan in points]
    medians = [np.median(seconds[size, f"{plan}; ucx"]) for size, plan in points]
    return cost_model.CostModel(*exchange_fit.fit(amounts, medians))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    if reason := slow_links.missing():
        raise SystemExit(reason)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tf_adasum.aggregation import cost_model

    model = fitted(arguments.steps)
    rows, errors = [], []
    for hosts, per_host in TOPOLOGIES:
        for mbit in arguments.mbit:
            found = measured(mbit, hosts, per_host, [FLAT, DEFAULT, SUM], arguments.steps)
            links = cost_model.Hosts(per_host, beta=8e-6 / mbit)
            for size, elements in SIZES.items():
                flat, followed = found[size, FLAT], found[size, DEFAULT]
                plans = [WORKERS], [per_host, hosts]
                estimates = [model.seconds(plan, 4 * elements, 1, links) for plan in plans]
                for own, estimate in zip((flat, followed), estimates, strict=True):
                    errors.append(estimate / np.median(own) - 1)
                rows.append([f"{hosts} × {per_host}", mbit, size])
                rows[-1] += [report.quartiles(own, 1000, 1) for own in (flat, followed)]
                rows[-1] += [report.quartiles(followed / flat)]
                rows[-1] += [f"{1000 * estimate:.1f}" for estimate in estimates]
                rows[-1] += [report.quartiles(found[size, SUM], 1000, 1)]
    good = sum(abs(error) <= ALLOWED for error in errors)
    report.write(
        "hosts",
        "Exchanges on several hosts with several workers each",
        f"{WORKERS} workers with one device each. Each host is a network namespace, and `tc tbf` "
        "limits its link in both directions. All hosts share the cores of this machine. The "
        "gradients are one variable of float32. Milliseconds of one exchange over UCX, median "
        "(quartiles) of the steps on worker 0. *[8]*: one level with all workers. *Default*: the "
        "plan that the strategy chooses, which follows the hosts. *Default / [8]* is of "
        "neighbouring steps. *Sum* is TensorFlow's all-reduce over gRPC. The estimates are those "
        "of the cost model for [8] and for [workers per host, hosts]. Its α, β and γ are fitted to "
        f"the plans {', '.join(map(str, PLANS))} of the same workers on one host: "
        f"α = {model.alpha:.1e}, β = {model.beta:.1e}, γ = {model.gamma:.1e}. β_h comes from the "
        "rate of the link. The strategy does not know the rate; its default is 10 Gbit/s.\n\n"
        + report.table(
            [
                "hosts × workers",
                "Mbit/s",
                "gradients",
                "[8], ms",
                "default, ms",
                "default / [8]",
                "[8], estimate",
                "default, estimate",
                "sum, ms",
            ],
            rows,
        )
        + f"\n\nThe estimate is within {100 * ALLOWED:.0f} % of the median at {good} of "
        f"{len(errors)} points. Relative errors: "
        + ", ".join(f"{100 * error:+.0f} %" for error in errors)
        + ".",
    )


if __name__ == "__main__":
    main()
