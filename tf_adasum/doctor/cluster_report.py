"""Check the installation and the connections of several workers; worker 0 coordinates the steps.

    rendezvous  workers find each other as in training; each worker sends the port of its
                probe server
    pairs       worker 0 asks one worker after the other to measure its connections, so that nothing
                else is sent meanwhile
    exchange    all workers start a process that exchanges gradients, as in training
    look        each worker checks what is installed, and sends a report to worker 0
    end         worker 0 prints everything, and sends the exit status. No worker ends earlier,
                because a launcher would then end the other workers

Every wait has a timeout. If a worker is lost, the report names it, and the other workers continue.
Uses only the standard library.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum import environment_variables
from tf_adasum._version import series
from tf_adasum.cluster import joining, rendezvous, secret
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import Cluster, RendezvousConfig
from tf_adasum.doctor import probe_server
from tf_adasum.doctor.exchange_process import SECONDS_FOR_THE_EXCHANGE, ExchangeProcess
from tf_adasum.doctor.findings import FAIL, NOTE, WARN, Finding, describe
from tf_adasum.doctor.prediction import link_findings
from tf_adasum.doctor.probe_server import MessageStream, ProbeServer
from tf_adasum.errors import WorkerLostError

_SETTINGS = {"program": "tf-adasum-doctor"}
# Up to this many workers, all pairs are measured. With more workers, only pairs whose numbers
# differ by 1, 2, 4, ... are measured.
MOST_FOR_ALL_PAIRS = 48
_SECONDS_TO_CALL = 20.0
_SECONDS_FOR_A_PAIR = 10.0
_SECONDS_OF_SENDING = (0.02, 0.25)  # in one direction, at least and at most
_SECONDS_FOR_ALL_PAIRS = 20.0
_MOST_FAILURES = 3  # of the pairs of two hosts
_SECONDS_FOR_OTHER_ERRORS = 5.0  # because the first error may be the effect of another error
_SECONDS_TO_LOOK = 180.0
_SECONDS_TO_WAIT = 500.0  # for an instruction
_SECONDS_FOR_WORKER_0 = 3.0
_POLL_SECONDS = 0.1
# A pair is slow if it is slower than the median of all pairs by this factor.
SLOW = 3.0


@dataclasses.dataclass
class Examination:
    """The results for several workers.

    Attributes:
        workers: the report of each worker: name, address, host, facts, findings.
        pairs: for each pair and direction, the ranks "from" and "to", and "latency_seconds" and
            "bytes_per_second", or an "error"; slow pairs have "slow".
        exchanges: for each size, "bytes", the "seconds" of each exchange on worker 0, and "over",
            the transport and the reason for it. A skipped size has "bytes", "left_out" and
            "expected_seconds".
        findings: the findings that concern several workers, such as different versions.
    """

    workers: list[dict[str, Any]]
    pairs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    exchanges: list[dict[str, Any]] = dataclasses.field(default_factory=list)
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
    found: Cluster | RendezvousConfig,
    look: Callable[[], list[Finding]],
    show: Callable[[Examination], int],
    environment: Mapping[str, str] = os.environ,
    timeout: float | None = None,
) -> int:
    """Examine all workers of the cluster to which this process belongs.

    Args:
        found: the `Cluster` of several tasks, or the `RendezvousConfig` to join a cluster.
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
        with contextlib.ExitStack() as stack:
            with contextlib.ExitStack() as joining_alone:
                cluster = found
                if isinstance(found, RendezvousConfig):
                    cluster = joining.enter(found, seconds, environment, joining_alone)
                name = {"name": cluster.names[found.rank], "address": cluster.addresses[found.rank]}
                host, _ = cluster.host_and_port(cluster.rank)
                own_secret = secret.read(environment)
                server = stack.enter_context(ProbeServer(host, len(cluster.names), own_secret))
                endpoint = {"probe server": server.endpoint}
                endpoints = rendezvous.run(cluster, _SETTINGS, seconds, endpoint, environment)
            of_servers = {rank: each.get("probe server") for rank, each in endpoints.items()}
            if cluster.rank > 0:
                return _follow(cluster, of_servers[0], own_secret, look)
            return _Coordinator(cluster, server, of_servers, own_secret).examine(look, show)
    except (OSError, ValueError, WorkerLostError) as error:
        fix = "start the doctor on all workers, in the same way"
        finding = Finding(FAIL, "cluster", describe(error), fix)
        if found.rank > 0:
            print(finding, file=sys.stderr, flush=True)
            time.sleep(_SECONDS_FOR_WORKER_0)  # until worker 0 has reported this error
            return 1
        # Print at once, because a launcher ends worker 0 soon after the other workers.
        return show(Examination([{**name, **report_of([])}], findings=[finding]))


def _named(cluster, rank, report):
    return {"name": cluster.names[rank], "address": cluster.addresses[rank], **report}


# ---- worker 0 ----------------------------------------------------------------------------------


class _Coordinator:
    """Worker 0, which sends instructions to the other workers.

    Args:
        cluster: the `Cluster`.
        server: the `ProbeServer` at which the other workers wait for instructions.
        endpoints: the `endpoint` of each other worker's server.
        secret: the `Secret` of the cluster.
    """

    def __init__(
        self, cluster: Cluster, server: ProbeServer, endpoints: dict[int, Any], secret: Secret
    ):
        self._cluster, self._endpoints, self._secret = (
            cluster,
            {**endpoints, 0: server.endpoint},
            secret,
        )
        self._findings: list[Finding] = []
        others = range(1, len(cluster.addresses))
        self._lines: dict[int, MessageStream] = server.waiting(others, _SECONDS_TO_CALL)
        for rank in others:
            if rank not in self._lines:
                self._fail(
                    f"{cluster.named([rank])} does not connect to port {server.endpoint[0]} of "
                    f"{cluster.named([0])}",
                    "let workers connect to each other on any port, because failure detection "
                    "needs it",
                )

    def examine(self, look, show):
        """Send the instructions; return the exit status."""
        pairs = self._measured_pairs()
        exchange = self._exchanged()
        for rank in [*self._lines]:
            self._send(rank, {"look": True})
        reports = {0: report_of(look())}
        for rank in [*self._lines]:
            reports[rank] = self._heard(rank, _SECONDS_TO_LOOK).get("report")
        workers = []
        for rank in range(len(self._cluster.addresses)):
            report = _named(self._cluster, rank, reports.get(rank) or _NO_REPORT)
            workers.append({**report, "devices": exchange.get(rank, {}).get("devices")})
        self._findings += differences(workers)
        code = show(
            Examination(workers, pairs, exchange.get(0, {}).get("exchanges", []), self._findings)
        )
        for rank in [*self._lines]:
            self._send(rank, {"end": code})
        return code

    def _fail(self, text, fix=None):
        self._findings.append(Finding(FAIL, "cluster", text, fix))

    def _send(self, rank, message):
        try:
            self._lines[rank].send(message)
        except OSError as error:
            self._lose(rank, error)

    def _heard(self, rank, seconds):
        try:
            return self._lines[rank].receive(seconds) if rank in self._lines else {}
        except OSError as error:
            self._lose(rank, error)
            return {}

    def _lose(self, rank, error):
        what = "does not answer" if isinstance(error, TimeoutError) else "was lost"
        self._fail(f"{self._cluster.named([rank])} {what}: {describe(error)}")
        self._lines.pop(rank).close()

    def _measured_pairs(self):
        ranks = [0, *self._lines]
        chosen = pairs_of(ranks)
        _say(f"measuring {len(chosen)} pairs of {len(ranks)} workers, one after the other")
        least, most = _SECONDS_OF_SENDING
        share = _SECONDS_FOR_ALL_PAIRS / max(1, 2 * len(chosen))
        sending = min(max(least, share), most)
        found = []
        failures: collections.Counter[frozenset[str]] = collections.Counter()  # of pairs of hosts
        for caller, answerer in chosen:
            host, _ = self._cluster.host_and_port(answerer)
            hosts = frozenset({host, self._cluster.hosts[caller]})
            if failures[hosts] == _MOST_FAILURES:  # each takes many seconds
                why = "left out, because other pairs of these hosts could not be measured"
                found.append({"from": caller, "to": answerer, "error": why})
                continue
            asked = {"host": host, "endpoint": self._endpoints[answerer], "sending": sending}
            if caller == 0:
                measured = _measure(asked, self._secret)
            elif caller not in self._lines:
                continue
            else:
                self._send(caller, {"measure": asked})
                measured = self._heard(caller, 3 * _SECONDS_FOR_A_PAIR).get("measured", {})
            failures[hosts] += "latency_seconds" not in measured
            found += self._both_ways(caller, answerer, measured)
        self._findings += [*self._slow(found), *link_findings(self._cluster.hosts, found)]
        return found

    def _both_ways(self, caller, answerer, measured):
        there, back = {"from": caller, "to": answerer}, {"from": answerer, "to": caller}
        if "latency_seconds" not in measured:
            error = measured.get("error", "no answer")
            names = [self._cluster.named([rank]) for rank in (caller, answerer)]
            text = f"{names[0]} could not measure its connection to {names[1]}: {error}"
            fix = "training may still work, if a firewall opens only the ports of the cluster"
            self._findings.append(Finding(WARN, "pair", text, fix))
            return [{**there, "error": error}]
        latency = measured["latency_seconds"]
        rates = measured["bytes_per_second"], measured["bytes_per_second_back"]
        return [
            {**way, "latency_seconds": latency, "bytes_per_second": rate}
            for way, rate in zip([there, back], rates, strict=True)
        ]

    def _slow(self, pairs):
        """Mark the slow pairs, and return findings about them."""
        measured = [each for each in pairs if "error" not in each]
        rates = sorted(each["bytes_per_second"] for each in measured)
        latencies = sorted(each["latency_seconds"] for each in measured)
        findings = []
        for each in measured:
            names = " to ".join(self._cluster.named([each[end]]) for end in ("from", "to"))
            usual = rates[len(rates) // 2], latencies[(len(latencies) - 1) // 2]
            if each["bytes_per_second"] * SLOW < usual[0]:
                text = f"{each['bytes_per_second'] / 1e6:.3g} MB/s; the median of all pairs is "
                text += f"{usual[0] / 1e6:.3g} MB/s"
            elif each["latency_seconds"] > SLOW * usual[1]:
                text = f"{each['latency_seconds'] * 1e6:.3g} µs of latency; the median of all "
                text += f"pairs is {usual[1] * 1e6:.3g} µs"
            else:
                continue
            each["slow"] = True
            findings.append(Finding(WARN, "slow pair", f"{names}: {text}"))
        return findings

    def _exchanged(self):
        """Let all workers exchange gradients; return the results by rank."""
        if len(self._lines) + 1 < len(self._cluster.addresses):
            self._fail("no gradients were exchanged, because not all workers are connected")
            return {}
        _say("exchanging gradients")
        for rank in [*self._lines]:
            self._send(rank, {"exchange": True})
        results: dict[int, dict] = {}
        expected = 1 + len(self._lines)
        deadline = time.monotonic() + SECONDS_FOR_THE_EXCHANGE
        with ExchangeProcess() as own:
            while time.monotonic() < deadline and len(results) < expected:
                if 0 not in results and (result := own.poll()) is not None:
                    results[0] = result
                for rank in [each for each in self._lines if each not in results]:
                    try:
                        results[rank] = self._lines[rank].receive(0.001).get("exchanged", {})
                    except TimeoutError:
                        pass
                    except OSError as error:
                        self._lose(rank, error)
                        results[rank] = {"error": describe(error)}
                if any("error" in result for result in results.values()):
                    deadline = min(deadline, time.monotonic() + _SECONDS_FOR_OTHER_ERRORS)
                time.sleep(_POLL_SECONDS)
        for rank in [each for each in self._lines if each not in results]:
            self._send(rank, {"stop": True})
            self._heard(rank, _SECONDS_TO_CALL)
        errors = {rank: each["error"] for rank, each in results.items() if "error" in each}
        if not errors:
            text = f"not finished in {SECONDS_FOR_THE_EXCHANGE:.0f} s"
            everybody = range(len(self._cluster.addresses))
            errors = {rank: text for rank in everybody if rank not in results}
        for rank, error in sorted(errors.items()):
            self._fail(
                f"the exchange of gradients failed on {self._cluster.named([rank])}: {error}"
            )
        return results


_NO_REPORT = {**report_of([Finding(FAIL, "report", "the worker sent no report")]), "host": "?"}


def pairs_of(ranks: list[int]) -> list[tuple[int, int]]:
    """Return the pairs to measure: all pairs of up to 48 workers, else only some of the pairs.

    With more than 48 workers, these are the pairs whose positions in `ranks` differ by 1, 2, 4, ...

    Example:
        >>> pairs_of([0, 1, 2])
        [(0, 1), (0, 2), (1, 2)]
    """
    count = len(ranks)
    distances = range(1, count)
    if count > MOST_FOR_ALL_PAIRS:
        distances = [2**power for power in range((count - 1).bit_length())]
    return [
        (ranks[first], ranks[first + distance])
        for first in range(count)
        for distance in distances
        if first + distance < count
    ]


def differences(workers: list[dict[str, Any]]) -> list[Finding]:
    """Return findings about values that differ between workers but must or should match."""
    findings = []
    needed = {"tf_adasum": str, "tensorflow": series, "keras": series}
    for name, compared in {**needed, "python": series, "op": str}.items():
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


def _follow(cluster, endpoint, own_secret, look):
    """Follow the instructions of worker 0; return the exit status that it sends."""
    host, _ = cluster.host_and_port(0)
    line = probe_server.wait_for_instructions(
        host, endpoint, own_secret, cluster.rank, _SECONDS_TO_CALL
    )
    answers = {
        "measure": lambda asked: {"measured": _measure(asked, own_secret)},
        "exchange": lambda asked: {"exchanged": _exchange(line)},
        "look": lambda asked: {"report": report_of(look())},
    }
    try:
        while "end" not in (message := line.receive(_SECONDS_TO_WAIT)):
            for name in message.keys() & answers.keys():
                line.send(answers[name](message[name]))
        return int(message["end"])
    finally:
        line.close()


def _measure(asked, own_secret):
    try:
        measure = functools.partial(probe_server.measure, seconds=_SECONDS_FOR_A_PAIR)
        return measure(asked["host"], asked["endpoint"], own_secret, asked["sending"])
    except (OSError, ValueError) as error:
        return {"error": describe(error)}


def _exchange(line):
    deadline = time.monotonic() + SECONDS_FOR_THE_EXCHANGE
    with ExchangeProcess() as process:
        while time.monotonic() < deadline:
            if (result := process.poll()) is not None:
                return result
            try:
                line.receive(_POLL_SECONDS)
                return {"error": "worker 0 stopped the exchange"}
            except TimeoutError:
                pass
    return {"error": f"not finished in {SECONDS_FOR_THE_EXCHANGE:.0f} s"}


def _say(text):
    print(f"tf-adasum-doctor: {text}", file=sys.stderr, flush=True)
