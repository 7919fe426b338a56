"""Make the tables about several workers: hosts, versions, devices and speed.

Uses only the standard library.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Sequence
from typing import Any

from tf_adasum.doctor.findings import FAIL, WARN

# A matrix of more workers does not fit on a screen.
WIDEST = 8
_VERSIONS = ("tf_adasum", "python", "tensorflow", "keras")


def lines_of(workers: Sequence[dict], pairs: Sequence[dict], exchanges: Sequence[dict]) -> str:
    """Return the tables of an `Examination`, and the warnings and failures of workers 1, 2, …"""
    parts = [workers_table(workers)]
    if pairs:
        parts.append(
            "From worker to worker, one pair after the other, over TCP sockets of Python (not "
            "gRPC or NCCL):\none-way latency, and bytes per second\n"
            + (matrix(workers, pairs) if len(workers) <= WIDEST else summary(workers, pairs))
        )
    if exchanges:
        over = "".join(f", over {each['over']}" for each in exchanges[:1] if "over" in each)
        parts.append(
            f"Adasum of float32 gradients, with the strategy itself{over}:\n{times(exchanges)}"
        )
    troubles = [
        f"{finding['level']:<4}  {worker['name']}: {finding['subject']}: {finding['text']}"
        + (f"\n      -> {finding['fix']}" if finding["fix"] else "")
        for worker in workers[1:]
        for finding in worker["findings"]
        if finding["level"] in (WARN, FAIL)
    ]
    return "\n\n".join([*parts, *(["\n".join(troubles)] if troubles else [])])


def workers_table(workers: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each worker."""
    rows = [["worker", "host", "address", *_VERSIONS, "op", "TensorBoard", "devices", "usable"]]
    for worker in workers:
        rows.append(
            [
                worker["name"],
                worker.get("host", "?"),
                worker["address"],
                *(worker.get(name) or "?" for name in _VERSIONS),
                worker.get("op") or "?",
                worker.get("tensorboard") or "-",
                devices_of(worker),
                "yes" if worker["usable"] else "NO",
            ]
        )
    return aligned(rows)


def devices_of(worker: dict[str, Any]) -> str:
    """Return the number of devices of each type: training devices if known, else all devices."""
    if worker.get("devices"):
        kinds = collections.Counter(name.partition(":")[0] for name in worker["devices"])
    else:
        kinds = collections.Counter(worker.get("physical_devices") or {})
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count) or "?"


def matrix(workers: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each sending and a column for each receiving worker."""
    cells = {(pair["from"], pair["to"]): speed(pair) for pair in pairs}
    rows = [["from \\ to", *(worker["name"] for worker in workers)]]
    for number, worker in enumerate(workers):
        others = range(len(workers))
        rows.append([worker["name"], *(cells.get((number, other), "-") for other in others)])
    return aligned(rows)


def summary(workers: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> str:
    """Return the minimum, median and maximum speed, and the pairs that are slow or failed."""
    measured = [pair for pair in pairs if "error" not in pair]
    rows = [["", "latency", "bandwidth"]]
    for name, function in (("minimum", min), ("median", statistics.median), ("maximum", max)):
        if measured:
            latency = function(pair["latency_seconds"] for pair in measured)
            rate = function(pair["bytes_per_second"] for pair in measured)
            rows.append([name, _microseconds(latency), _rate(rate)])
    odd = [
        f"{workers[pair['from']]['name']} to {workers[pair['to']]['name']}: {speed(pair)}"
        for pair in pairs
        if pair.get("slow") or "error" in pair
    ]
    return "\n".join([aligned(rows), *odd])


def speed(pair: dict[str, Any]) -> str:
    """Return the text of a cell with the speed of a pair.

    Example:
        >>> speed({"latency_seconds": 5e-5, "bytes_per_second": 1.25e9, "slow": True})
        '50 µs, 1.25 GB/s SLOW'
    """
    if "error" in pair:
        return "NO ANSWER"
    text = f"{_microseconds(pair['latency_seconds'])}, {_rate(pair['bytes_per_second'])}"
    return f"{text} SLOW" if pair.get("slow") else text


def times(exchanges: Sequence[dict[str, Any]]) -> str:
    """Return a table with the times of the exchanges, with a row for each size of the gradients."""
    rows = [["gradients", "median", "from", "to", "times"]]
    for each in exchanges:
        size = f"{each['bytes'] / 2**20:g} MiB"
        if each.get("left_out"):
            rows.append([size, f"skipped: it would take {each['expected_seconds']:.0f} s"])
            continue
        seconds = each["seconds"]
        of_all = (statistics.median(seconds), min(seconds), max(seconds))
        rows.append([size, *(f"{1e3 * one:.3g} ms" for one in of_all), str(len(seconds))])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table with aligned columns."""
    widths: dict[int, int] = {}
    for row in rows:
        for column, cell in enumerate(row):
            widths[column] = max(widths.get(column, 0), len(cell))
    return "\n".join(
        "  ".join(f"{cell:<{widths[column]}}" for column, cell in enumerate(row)).rstrip()
        for row in rows
    )


def _microseconds(seconds):
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _rate(rate):
    return f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"
