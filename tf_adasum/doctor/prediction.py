"""Estimate the time of a step on many replicas: ``tf-adasum-doctor --predict``.

The estimate is that of `aggregation.cost_model`. It assumes that the exchange of gradients does not
overlap with backpropagation, so a real step may take less time. `link_findings` gives the constants
of the links between hosts, and `write_links` writes them to a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tf_adasum import atomic_files
from tf_adasum.doctor import tables
from tf_adasum.doctor.findings import FAIL, NOTE, WARN, Finding
from tf_adasum.environment_variables import COST_MODEL, HOST_LINK

_BYTES_OF_MB = 1_000_000
_LINKS = "links"  # the subject of findings
_SET = "if hosts have several replicas, set on all workers: TF_ADASUM_HOST_LINK="


@dataclasses.dataclass(frozen=True)
class Job:
    """A training job whose steps are estimated.

    Attributes:
        replicas: N, the number of replicas. Defaults to 8.
        replicas_per_host: L, the number of replicas on each host. Defaults to 1.
        model_mb: the size of the gradients in MB. Defaults to 100.
        variables: the number of variables. Defaults to 100.
        step_ms: milliseconds of a step on one device. Defaults to 100.

    Raises:
        ValueError: if a number is too small, or N is not a multiple of L.
    """

    replicas: int = 8
    replicas_per_host: int = 1
    model_mb: float = 100.0
    variables: int = 100
    step_ms: float = 100.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for option, number in {
            "--replicas": self.replicas,
            "--replicas-per-host": self.replicas_per_host,
            "--variables": self.variables,
        }.items():
            if number < 1:
                raise ValueError(f"{option} must be at least 1. Received: {number}")
        for option, value in {"--model-mb": self.model_mb, "--step-ms": self.step_ms}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{option} must be positive. Received: {value:g}")
        if self.replicas % self.replicas_per_host:
            raise ValueError(
                f"--replicas ({self.replicas}) must be a multiple of --replicas-per-host "
                f"({self.replicas_per_host})"
            )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``--predict`` to the parser of the command; see `given_options`."""
    group = parser.add_argument_group("estimate of a step on many replicas")
    group.add_argument(
        "--predict",
        action="store_true",
        help="estimate a step of the job that the options below describe, and check nothing",
    )
    for name, what in {
        "replicas": "devices on all hosts",
        "replicas_per_host": "devices on each host",
        "model_mb": "MB of the gradients, 4 bytes for each trainable parameter",
        "variables": "len(model.trainable_variables)",
        "step_ms": "milliseconds of a step on one device",
    }.items():
        default = getattr(Job, name)
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            default=argparse.SUPPRESS,
            help=f"{what}; default: {default:g}",
        )


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Job` that the user has given on the command line."""
    names = [field.name for field in dataclasses.fields(Job)]
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def predicted(job: Job, links_file: str | None = None) -> str:
    """Return the table of estimates for a job, as text.

    Args:
        job: the job.
        links_file: a file of ``--links``, which replaces ``TF_ADASUM_HOST_LINK``. Defaults to
            `None`.

    Raises:
        ImportError: if TensorFlow cannot be imported.
        ValueError: if ``TF_ADASUM_COST_MODEL``, ``TF_ADASUM_HOST_LINK`` or the file is not valid.
    """
    from tf_adasum.aggregation import buckets, cost_model

    measured = cost_model.measured()
    model = measured or cost_model.UCX
    if links_file:
        links = cost_model.Hosts.from_file(job.replicas_per_host, links_file)
        source = links_file
    else:
        links = cost_model.Hosts.measured(job.replicas_per_host)
        source = HOST_LINK if os.environ.get(HOST_LINK) else ""
    size = job.model_mb * _BYTES_OF_MB
    count = min(job.variables, max(1, round(size / buckets.DEFAULT_BUCKET_BYTES)))
    bucket = size / count, max(1, job.variables // count)
    hosts = job.replicas // job.replicas_per_host
    shared = links if hosts > 1 and job.replicas_per_host > 1 else None
    # With one replica per host, the user's cost model already describes the links between hosts.
    between = links if hosts > 1 and (shared or source or not measured) else None
    chosen = cost_model.default_plan(job.replicas, *bucket, measured, model, shared)
    seconds = {
        f"Adasum, {[*plan]}": model.seconds(plan, *bucket, between)
        for plan in dict.fromkeys([chosen, (job.replicas,)])
    }
    seconds["mean, one flat ring"] = model.ring_seconds(job.replicas, bucket[0], between)
    table = _table(job, {name: count * each for name, each in seconds.items()})
    constants = f"alpha={model.alpha:.1e} beta={model.beta:.1e} gamma={model.gamma:.1e}"
    notes = [
        f"{job.replicas} replicas on {hosts} {'hosts' if hosts > 1 else 'host'}, "
        f"{job.replicas_per_host} on each host; {job.step_ms:g} ms per step on one device",
        f"gradients: {job.model_mb:g} MB in {job.variables} variables, sent in "
        f"{count} {'bucket' if count == 1 else 'buckets'}",
        f"constants: {constants} ({COST_MODEL if measured else 'of UCX on two CPU cores'})",
    ]
    if between:
        notes.append(
            f"links between hosts: alpha={links.alpha:.1e} beta={links.beta:.1e} "
            f"({source or 'assumed, 10 Gbit/s'})"
        )
    end = "The first plan is the default. The exchange does not overlap with backpropagation here."
    return "\n".join([*notes, "", table, "", end])


def _table(job: Job, seconds: Mapping[str, float]) -> str:
    """Return the table for the seconds of an exchange with each algorithm."""
    rows = [["", "exchange", "step", "speed-up", "efficiency"]]
    for name, of_exchange in seconds.items():
        exchange_ms = 1000 * of_exchange * (job.replicas > 1)
        step_ms = job.step_ms + exchange_ms
        efficiency = job.step_ms / step_ms
        times = [f"{exchange_ms:.1f} ms", f"{step_ms:.1f} ms"]
        speed_up = f"{job.replicas * efficiency:.1f} x"
        rows.append([name, *times, speed_up, f"{100 * efficiency:.0f} %"])
    return tables.aligned(rows)


def link_findings(hosts: Sequence[str], pairs: Sequence[dict[str, Any]]) -> list[Finding]:
    """Return a finding about the links between hosts, with their constants of the cost model.

    Args:
        hosts: the host of each worker, by rank.
        pairs: the measured pairs, see `cluster_report.Examination`.

    Returns:
        One finding; none if no pair on different hosts was measured.
    """
    measured = [pair for pair in pairs if "error" not in pair]
    own = [pair for pair in measured if hosts[pair["from"]] == hosts[pair["to"]]]
    others = [pair for pair in measured if hosts[pair["from"]] != hosts[pair["to"]]]
    if not others:
        return []
    latency = statistics.median(pair["latency_seconds"] for pair in others)
    inside = statistics.median(pair["latency_seconds"] for pair in own) if own else 0.0
    # The fastest pair: one slow link is reported separately, and does not describe the others.
    rate = max(pair["bytes_per_second"] for pair in others)
    text = f"between hosts: {latency * 1e6:.3g} µs, and at least {rate / 1e6:.3g} MB/s"
    text += f"; on one host: {inside * 1e6:.3g} µs" if own else ""
    link = {"alpha": max(0.0, latency - inside), "beta": 1 / rate}
    constants = ",".join(f"{name}={number:.1e}" for name, number in link.items())
    return [Finding(NOTE, _LINKS, text, _SET + constants, link)]


def write_links(path: str, hosts: Sequence[str], findings: list[Finding]) -> None:
    """Write the constants of the links between hosts to a file, and report it in the findings.

    Args:
        path: the file, which ``TF_ADASUM_HOST_LINK`` can name.
        hosts: the name of each worker's host.
        findings: the findings about several workers, which are changed.
    """
    links = next((each for each in findings if each.subject == _LINKS), None)
    if links is None:
        text = f"{path} was not written, because no link between two hosts was measured"
        findings.append(Finding(WARN, _LINKS, text))
        return
    try:
        with atomic_files.replacing(path) as unfinished, open(unfinished, "w") as file:
            file.write(json.dumps({"hosts": sorted(set(hosts)), **links.facts}) + "\n")
    except OSError as error:
        findings.append(
            Finding(FAIL, _LINKS, f"{path} cannot be written: {error.strerror or error}")
        )
        return
    fix = f"{_SET}{os.path.abspath(path)}"
    findings[findings.index(links)] = dataclasses.replace(links, fix=fix)
