"""Estimate the time of a step on many replicas: ``tf-adasum-doctor --predict``.

The estimate is that of `aggregation.cost_model`. It assumes that the exchange of gradients does not
overlap with backpropagation, so a real step may take less time. `link_findings` gives the constants
of the links between hosts.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from tf_adasum.doctor import tables
from tf_adasum.doctor.findings import NOTE, Finding

_BYTES_OF_MB = 1_000_000


@dataclasses.dataclass(frozen=True)
class Job:
    """A training job whose steps are estimated.

    Attributes:
        replicas: N, the number of replicas.
        replicas_per_host: L, the number of replicas on each host.
        megabytes: the size of the gradients in MB.
        variables: the number of variables.
        step_ms: milliseconds of a step on one device.
    """

    replicas: int
    replicas_per_host: int
    megabytes: float
    variables: int
    step_ms: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.replicas < 1 or self.replicas_per_host < 1 or self.variables < 1:
            raise ValueError("--replicas, --replicas-per-host and --variables must be at least 1")
        if self.replicas % self.replicas_per_host:
            raise ValueError("--replicas must be a multiple of --replicas-per-host")
        if self.megabytes <= 0 or self.step_ms <= 0:
            raise ValueError("--model-mb and --step-ms must be positive")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``--predict`` to the parser of the command."""
    group = parser.add_argument_group("estimate of a step on many replicas")
    group.add_argument(
        "--predict", action="store_true", help="print the estimate, and check nothing"
    )
    group.add_argument("--replicas", type=int, default=8, help="default: 8")
    group.add_argument(
        "--replicas-per-host", type=int, default=1, help="devices of one host; default: 1"
    )
    group.add_argument(
        "--model-mb", type=float, default=100.0, help="MB of the gradients; default: 100"
    )
    group.add_argument("--variables", type=int, default=100, help="default: 100")
    group.add_argument(
        "--step-ms", type=float, default=100.0, help="a step on one device; default: 100"
    )


def predicted(job: Job) -> str:
    """Return the table of estimates for a job, as text.

    Raises:
        ValueError: if ``TF_ADASUM_COST_MODEL`` is not valid.
    """
    from tf_adasum.aggregation import cost_model  # imports TensorFlow

    measured = cost_model.measured()
    model = measured or cost_model.UCX
    size = job.megabytes * _BYTES_OF_MB
    hosts = job.replicas // job.replicas_per_host
    count = min(job.variables, max(1, round(size / cost_model.buckets.DEFAULT_BUCKET_BYTES)))
    bucket = size / count, max(1, job.variables // count)
    chosen = cost_model.default_plan(
        job.replicas, *bucket, measured, model, replicas_per_host=job.replicas_per_host
    )
    times = {
        f"Adasum, {list(chosen)} (default)": count
        * model.seconds(chosen, *bucket, job.replicas_per_host)
    }
    if chosen != (job.replicas,):
        flat = (job.replicas,)
        times[f"Adasum, {list(flat)}"] = count * model.seconds(flat, *bucket, job.replicas_per_host)
    times["mean, by a ring"] = count * model.ring_seconds(
        job.replicas, bucket[0], job.replicas_per_host
    )
    rows = [["", "exchange", "step", "speed-up", "efficiency"]]
    for name, seconds in times.items():
        step = job.step_ms + 1000 * seconds
        efficiency = job.step_ms / step
        rows.append(
            [
                name,
                f"{1000 * seconds:.1f} ms",
                f"{step:.1f} ms",
                f"{job.replicas * efficiency:.1f} x",
                f"{100 * efficiency:.0f} %",
            ]
        )
    constants = ", ".join(f"{name}={value:.1e}" for name, value in vars(model).items())
    source = f"from {cost_model.VARIABLE}" if measured else "the defaults for UCX"
    return (
        f"{job.replicas} replicas on {hosts} hosts, {job.replicas_per_host} on each host\n"
        f"gradients of {job.megabytes:g} MB in {job.variables} variables, in {count} buckets\n"
        f"{job.step_ms:g} ms per step on one device\n"
        f"{constants} ({source})\n\n"
        f"{tables.aligned(rows)}\n\n"
        "These are estimates without overlap of the exchange and backpropagation."
    )


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
    rate = statistics.median(pair["bytes_per_second"] for pair in others)
    text = f"between hosts: {rate / 1e6:.3g} MB/s, {latency * 1e6:.3g} µs"
    text += f"; on one host: {inside * 1e6:.3g} µs" if own else ""
    more = max(0.0, latency - inside)
    fix = (
        "for radix plans, set on all workers: "
        f"TF_ADASUM_COST_MODEL=alpha_host={more:.1e},beta_host={1 / rate:.1e}"
    )
    return [Finding(NOTE, "links", text, fix)]
