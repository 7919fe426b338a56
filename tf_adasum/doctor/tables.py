"""Make the tables about several workers: hosts, versions, devices and the exchange.

Uses only the standard library.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tf_adasum.doctor.findings import FAIL, WARN

_VERSIONS = ("tf_adasum", "python", "tensorflow", "keras")


def lines_of(workers: Sequence[dict[str, Any]], exchange: Mapping[str, Any]) -> str:
    """Return the tables of an `Examination`, and the warnings and failures of workers 1, 2, …"""
    parts = [workers_table(workers)]
    if exchange:
        parts.append(
            f"Adasum of float32 gradients, with the strategy itself, over {exchange['over']}:\n"
            f"{times(exchange)}"
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
    rows = [["worker", "host", "address", *_VERSIONS, "op", "devices", "usable"]]
    for worker in workers:
        rows.append(
            [
                worker["name"],
                worker.get("host", "?"),
                worker["address"],
                *(worker.get(name) or "?" for name in _VERSIONS),
                worker.get("op") or "?",
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


def times(exchange: Mapping[str, Any]) -> str:
    """Return a table with the times of the exchange."""
    seconds = exchange["seconds"]
    of_all = (statistics.median(seconds), min(seconds), max(seconds))
    cells = [f"{exchange['bytes'] / 2**20:g} MiB", *(f"{1e3 * one:.3g} ms" for one in of_all)]
    return aligned([["gradients", "median", "from", "to", "times"], [*cells, str(len(seconds))]])


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
