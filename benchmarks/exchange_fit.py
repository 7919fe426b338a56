"""Fit the cost model of `tf_adasum.aggregation.cost_model` to measured exchanges.

The model is linear: a bucket takes ``α · messages + β · bytes + γ · products`` seconds. Each point
is a measured median and its three amounts; the fit minimizes the squares of the relative errors,
``Σ (predicted / measured - 1)²``, with α, β, γ ≥ 0.

On one machine bytes and products are almost proportional to each other. Points that measure only
the arithmetic, without messages and bytes, separate β from γ.

If workers share cores, sending takes longer: messages and bytes count ``workers / cores`` times, so
that α and β are the constants of a worker with its own core.
"""

import itertools
import json
import os

import numpy as np
import report
from exchange_worker import on_workers

# Bytes and segments of the buckets, which are all smaller than one piece. Tracing takes seconds if
# there are many segments.
BUCKETS = [
    *((size, 1) for size in (250_000, 1_000_000, 4_000_000, 16_000_000)),
    (4_000_000, 160),
    (16_000_000, 160),
]
# With fewer bytes, calling a function in TensorFlow takes as long as the arithmetic.
ARITHMETIC_FROM = 4_000_000


def points(plans, steps, transport):
    """Measure all exchanges.

    Args:
        plans: dict from numbers of workers to kinds of exchange, such as ``["[4]", "[2, 2]"]``.
        steps: number of steps.
        transport: "tensorflow" or "ucx".

    Returns:
        list of dicts: the point's ``workers``, ``cores`` of the machine, ``kind``, ``size`` in
        bytes, ``segments``, and the ``seconds`` of each step.
    """
    found = []
    over = "" if transport == "tensorflow" else f"; {transport}"
    for workers, own in plans.items():
        own = [f"{plan}{over}" for plan in own]
        cases = [
            (
                [[size // 4 // segments]] * segments,
                [*own, "arithmetic"] if size >= ARITHMETIC_FROM else own,
            )
            for size, segments in BUCKETS
        ]
        arguments = {"cases": cases, "steps": steps, "gathers_small_buckets": False}
        measured, _ = on_workers(workers, 1, "times", transport=transport, **arguments)
        found += [
            {
                "workers": workers,
                "cores": os.cpu_count(),
                "kind": kind.removesuffix(over),
                "size": size,
                "segments": segments,
                "seconds": by_kind[kind]["seconds"],
            }
            for (size, segments), by_kind in zip(BUCKETS, measured, strict=True)
            for kind in by_kind
        ]
    return found


def amounts(point):
    """Return what α, β and γ are multiplied by."""
    from tf_adasum.aggregation import cost_model

    is_exchange = point["kind"] != "arithmetic"
    plan = json.loads(point["kind"]) if is_exchange else [point["workers"]]
    messages, sent, products = cost_model.amounts(plan, point["size"], point["segments"])
    shared = max(1.0, point["workers"] / point["cores"]) if is_exchange else 0.0
    return shared * messages, shared * sent, products


def fit(amounts_P3, seconds_P):
    """Return the α, β, γ ≥ 0 with the least squared relative errors, for P points."""
    seconds_P = np.asarray(seconds_P)
    return nonnegative_least_squares(
        np.asarray(amounts_P3) / seconds_P[:, None], np.ones_like(seconds_P)
    )


def nonnegative_least_squares(matrix, target):
    """Return the x ≥ 0 that minimizes ``‖matrix x - target‖``, by trying every set of zeros.

    The minimum is the unconstrained minimum over the columns whose x is not zero. There are few
    columns, so all sets can be tried.
    """
    # The amounts differ by many powers of ten. Columns of equal norm keep `lstsq` accurate.
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = 1.0
    columns = range(matrix.shape[1])
    best, least = np.zeros(matrix.shape[1]), np.linalg.norm(target)
    for count in range(1, len(lengths) + 1):
        for chosen in map(list, itertools.combinations(columns, count)):
            scaled = matrix[:, chosen] / lengths[chosen]
            solution = np.linalg.lstsq(scaled, target, rcond=None)[0]
            residual = np.linalg.norm(scaled @ solution - target)
            if (solution >= 0).all() and residual < least:
                best, least = np.zeros_like(best), residual
                best[chosen] = solution / lengths[chosen]
    return best


def report_body(found, constants):
    """Return the report's text: the constants, every point, and the plans that would be chosen."""
    measured = [np.median(point["seconds"]) for point in found]
    predicted = [float(np.dot(constants, amounts(point))) for point in found]
    rows = [
        [
            *(point[name] for name in ("workers", "kind")),
            f"{point['size'] / 1e6:g}",
            point["segments"],
            report.quartiles(point["seconds"], scale=1000),
            f"{1000 * own:.2f}",
            f"{own / seconds:.2f}",
        ]
        for point, seconds, own in zip(found, measured, predicted, strict=True)
    ]
    error = np.sqrt(np.mean((np.divide(predicted, measured) - 1) ** 2))
    return (
        "All workers share the cores of one machine, and messages and bytes count workers / cores "
        "times: the constants are those of a worker with a core of its own, on this machine only."
        "\n\n"
        f"    {assignment(constants)}\n\n"
        f"Seconds of a message, of a byte, and of a product per byte. {len(found)} points, root "
        f"mean square of the relative errors {error:.0%}. Milliseconds, median (quartiles) of the "
        "steps on worker 0; “arithmetic” is the inner products and the weighted sum alone, on all "
        "workers at once.\n\n"
        + report.table(
            ["workers", "plan", "MB", "variables", "measured", "predicted", "predicted / measured"],
            rows,
        )
        + "\n\n## Choices on 4 workers\n\nRatio of neighbouring steps; below 1 `[2, 2]` is "
        "faster.\n\n"
        + report.table(
            ["MB", "variables", "[2, 2] / [4] measured", "predicted"],
            list(choice_rows(found, predicted)),
        )
    )


def choice_rows(found, predicted):
    """Compare the two plans for 4 workers, for each size and number of segments."""
    by_plan = {
        (point["size"], point["segments"], point["kind"]): (point["seconds"], own)
        for point, own in zip(found, predicted, strict=True)
        if point["workers"] == 4
    }
    for size, segments in BUCKETS:
        pairs, p = by_plan[size, segments, "[2, 2]"]
        whole, w = by_plan[size, segments, "[4]"]
        ratios = np.divide(pairs, whole)
        yield [f"{size / 1e6:g}", segments, report.quartiles(ratios), f"{p / w:.2f}"]


def assignment(constants):
    """Return the environment variable with its value, with two digits of each constant."""
    names = ("alpha", "beta", "gamma")
    numbers = ",".join(f"{name}={own:.1e}" for name, own in zip(names, constants, strict=True))
    return f"TF_ADASUM_COST_MODEL='{numbers}'"


def main(plans, steps, transport):
    """Measure, fit and write benchmarks/results/DATE-exchange_fit.md; over UCX …_fit_ucx.md."""
    found = points(plans, steps, transport)
    constants = fit(
        [amounts(point) for point in found], [np.median(point["seconds"]) for point in found]
    )
    title = "The exchange's cost model, fitted to measurements"
    name = "exchange_fit" if transport == "tensorflow" else f"exchange_fit_{transport}"
    report.write(name, title, report_body(found, constants))
