"""Check the installation of several workers, their connections, and an exchange of gradients.

    rendezvous  the workers find each other as in training, and test whether they reach each other's
                ports
    exchange    all workers start a process that exchanges gradients, as in training
    look        each worker checks what is installed
    end         worker 0 prints everything, and sends the exit status. No worker ends earlier,
                because a launcher would then end the other workers

The workers use the store of the rendezvous (`cluster.store`). Each other worker sets its key to
what it has found. With the key `step`, worker 0 stops an exchange that takes too long, and sends
the exit status. Every wait has a timeout. If a worker is lost, the report names it, and the other
workers continue. Uses only the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum import environment_variables
from tf_adasum._version import series
from tf_adasum.cluster.participant import Participant
from tf_adasum.cluster.session import Session
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import LEASE_SECONDS, POLL_SECONDS
from tf_adasum.doctor import exchange
from tf_adasum.doctor.findings import FAIL, NOTE, Finding, describe
from tf_adasum.errors import WorkerLostError

_SETTINGS = {"program": "tf-adasum-doctor"}
_EXCHANGED, _REPORT = "exchanged", "report"  # what a worker finds
_LOOK = "look"  # a value of the key `step`; the next one is the exit status
_SECONDS_TO_LOOK = 180.0
_SECONDS_FOR_WORKER_0 = 3.0


@dataclasses.dataclass
class Examination:
    """The results for several workers.

    Attributes:
        workers: the report of each worker: name, address, host, facts, findings.
        exchange: the exchange of gradients: "bytes", the "seconds" of each repetition on worker 0,
            and "over", the transport and the reason for it. Empty if the exchange has failed.
        findings: the findings that concern several workers, such as different versions.
    """

    workers: list[dict[str, Any]]
    exchange: dict[str, Any] = dataclasses.field(default_factory=dict)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether all checks succeeded on all workers."""
        return all(each["usable"] for each in self.workers) and not has_failed(self.findings)


def has_failed(findings: list[Finding]) -> bool:
    """Return whether a finding has the level `FAIL`."""
    return any(finding.level == FAIL for finding in findings)


def report_of(findings: list[Finding]) -> dict[str, Any]:
    """Return the facts and findings of one worker as a report of JSON types."""
    facts = {name: value for finding in findings for name, value in finding.facts.items()}
    listed = [
        {"level": each.level, "subject": each.subject, "text": each.text, "fix": each.fix}
        for each in findings
    ]
    usable = not has_failed(findings)
    return {"usable": usable, "host": socket.gethostname(), **facts, "findings": listed}


def examine(
    found: Cluster,
    look: Callable[[], list[Finding]],
    show: Callable[[Examination], int],
    environment: Mapping[str, str] = os.environ,
    timeout: float | None = None,
) -> int:
    """Examine all workers of the cluster to which this process belongs.

    Args:
        found: the `Cluster` of several workers.
        look: function that returns the findings of this worker.
        show: function that prints an `Examination` on worker 0, and returns the exit status.
        environment: the variables, such as the secret and the timeout. Defaults to ``os.environ``.
        timeout: seconds to wait for the other workers. Defaults to the timeout of a training.

    Returns:
        The exit status, the same on all workers that have joined.
    """
    seconds = environment_variables.start_timeout(timeout, environment)
    name = {"name": f"worker {found.rank}", "address": "?"}
    try:
        met = Participant(found, environment)
        with contextlib.closing(met):
            if not found.addresses:
                met.join(seconds)
            cluster = met.cluster
            name = _name(cluster, cluster.rank)
            met.meet(_SETTINGS, {}, seconds)
            if cluster.rank > 0:
                return _follow(cluster, met.session, look)
            return _lead(cluster, _Collector(met), look, show)
    except (OSError, ValueError, WorkerLostError) as error:
        fix = "start the doctor on all workers, in the same way"
        finding = Finding(FAIL, "cluster", describe(error), fix)
        if found.rank > 0:
            print(finding, file=sys.stderr, flush=True)
            time.sleep(_SECONDS_FOR_WORKER_0)  # until worker 0 has reported this error
            return 1
        # Print at once, because a launcher ends worker 0 soon after the other workers.
        return show(Examination([{**name, **report_of([])}], findings=[finding]))


def _name(cluster: Cluster, rank: int) -> dict[str, Any]:
    return {"name": cluster.names[rank], "address": cluster.addresses[rank]}


# ---- worker 0 ----------------------------------------------------------------------------------


class _Collector:
    """Collects on worker 0 what the other workers have found."""

    def __init__(self, met: Participant):
        self._met, self._cluster = met, met.cluster
        self._values: dict[int, dict[str, Any]] = {}
        self.findings: list[Finding] = []
        self._lost: set[int] = set()
        self._failing_since = float("inf")

    def add(self, rank: int, value: dict[str, Any]) -> None:
        """Note what a worker has found."""
        self._values[rank] = value

    def begin(self, step: str | int) -> None:
        """Set the key `step`."""
        self._met.publish("step", step)

    def fail(self, text: str, fix: str | None = None) -> None:
        """Add a finding about the workers."""
        self.findings.append(Finding(FAIL, "cluster", text, fix))

    def found(self, name: str) -> dict[int, Any]:
        """Return what the workers have found under a name, by their ranks."""
        return {rank: each[name] for rank, each in self._values.copy().items() if name in each}

    def awaited(self, name: str) -> set[int]:
        """Return the workers that have not found `name` yet, and name the workers that are lost."""
        arrived = self._met.round.arrived
        while arrived:
            rank, value = arrived.popleft()
            if isinstance(value, dict):
                self.add(rank, value)
            elif rank not in self._lost:
                self._lost.add(rank)
                self.fail(f"{self._cluster.named([rank])} was lost: its connection was closed")
        others = set(range(1, len(self._cluster.names)))
        return others - self._lost - self.found(name).keys()

    def has_failed(self) -> bool:
        """Return whether the exchange has failed on a worker some seconds ago."""
        self.awaited(_EXCHANGED)
        if self._lost or any("error" in each for each in self.found(_EXCHANGED).values()):
            self._failing_since = min(self._failing_since, time.monotonic())
        return time.monotonic() > self._failing_since + LEASE_SECONDS

    def wait(self, name: str, until: float) -> None:
        """Wait until all workers have found `name`, or the exchange has failed."""
        while self.awaited(name) and time.monotonic() < until:
            if name == _EXCHANGED and self.has_failed():
                return
            time.sleep(POLL_SECONDS)

    def name_silent(self, name: str) -> None:
        """Name the workers that have not found `name` in time."""
        for rank in sorted(self.awaited(name)):
            self.fail(f"{self._cluster.named([rank])} does not answer")


def _lead(cluster: Cluster, collector: _Collector, look: Callable, show: Callable) -> int:
    """Check this worker, print what all workers have found, and return the exit status."""
    exchanged = _exchanged(cluster, collector)
    reports = {0: report_of(look())}
    collector.wait(_REPORT, time.monotonic() + _SECONDS_TO_LOOK)
    collector.name_silent(_REPORT)
    reports |= collector.found(_REPORT)
    workers = []
    for rank in range(len(cluster.names)):
        devices = exchanged.get(rank, {}).get("devices")
        report = reports.get(rank) or _NO_REPORT
        workers.append({**_name(cluster, rank), **report, "devices": devices})
    collector.findings += differences(workers)
    times = exchanged[0].get("exchange", {})
    code = show(Examination(workers, times, collector.findings))
    collector.begin(code)
    return code


def _exchanged(cluster: Cluster, collector: _Collector) -> dict[int, dict[str, Any]]:
    """Exchange gradients with all workers; return the results by rank."""
    print("tf-adasum-doctor: exchanging gradients", file=sys.stderr, flush=True)
    until = time.monotonic() + exchange.SECONDS
    collector.add(0, {_EXCHANGED: exchange.run(collector.has_failed)})
    collector.wait(_EXCHANGED, until)
    results = collector.found(_EXCHANGED)
    collector.begin(_LOOK)  # an exchange that has not ended stops
    errors = {rank: each["error"] for rank, each in results.items() if "error" in each}
    if not errors:
        errors = dict.fromkeys(collector.awaited(_EXCHANGED), exchange.LATE)
    for rank, error in sorted(errors.items()):
        collector.fail(f"the exchange of gradients failed on {cluster.named([rank])}: {error}")
    return results


_NO_REPORT = {**report_of([Finding(FAIL, "report", "the worker sent no report")]), "host": "?"}


def differences(workers: list[dict[str, Any]]) -> list[Finding]:
    """Return findings about values that differ between workers but must or should match."""
    findings = []
    needed = ("tf_adasum", "tensorflow", "keras")
    for name in (*needed, "python", "op"):
        compared = str if name in ("tf_adasum", "op") else series
        names_of: dict[str, list[str]] = {}
        for worker in workers:
            if worker.get(name) is not None:
                names_of.setdefault(worker[name], []).append(worker["name"])
        if len({compared(value) for value in names_of}) > 1:
            text = "; ".join(f"{value} on {', '.join(own)}" for value, own in names_of.items())
            level = FAIL if name in needed else NOTE
            fix = "install the same version on all workers" if name in needed else None
            findings.append(Finding(level, "differ", f"{name}: {text}", fix))
    return findings


# ---- the others --------------------------------------------------------------------------------


def _follow(cluster: Cluster, session: Session, look: Callable) -> int:
    """Check this worker, send the results to worker 0, and return the exit status that it sends."""
    found = {_EXCHANGED: exchange.run(lambda: session.value("step") == _LOOK)}
    session.set(found)
    session.set({**found, _REPORT: report_of(look())})
    while True:
        is_over = session.is_over  # before the last look at the key
        if type(code := session.value("step")) is int:
            return code
        if is_over:
            raise ConnectionError(f"{cluster.named([0])} was lost")
        session.wait(POLL_SECONDS)
