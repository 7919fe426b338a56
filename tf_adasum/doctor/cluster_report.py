"""Check several workers: whether they join, reach each other, and have the same versions.

    rendezvous  the workers join, and compare their versions, as in training
    look        each worker tries to connect to the others, and checks what is installed
    exchange    if nothing has failed, all replicas combine gradients, as in training

The workers use the store of the rendezvous (`cluster.store`). After each step, each other worker
sets its key to its report. Worker 0 prints the reports after the last step, and with the name of
the step as key, sends whether something has failed. No worker goes on earlier, because a launcher
would then end the other workers. Every wait has a timeout. Uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum import environment_variables
from tf_adasum._version import __version__, series
from tf_adasum.cluster import detection, ports, tf_config
from tf_adasum.cluster.participant import Participant
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, PATIENCE_SECONDS, POLL_SECONDS
from tf_adasum.doctor.findings import FAIL, NOTE, OK, Finding, describe, report_of, run
from tf_adasum.doctor.installation import installed_version
from tf_adasum.errors import WorkerLostError
from tf_adasum.health.reachability import connect_errors

_SECONDS_TO_LOOK = 180.0
_SECONDS_FOR_WORKER_0 = 3.0
_LOOK, _EXCHANGE = "look", "exchange"


def find(environment: Mapping[str, str]) -> tuple[Finding, Cluster | None]:
    """Return a finding about the cluster in the environment, and the cluster.

    The second value is None if there is no cluster, or if its description is wrong.
    """
    try:
        text = environment.get(tf_config.NAME, "")
        cluster = tf_config.parse(text) or detection.find(environment)
    except ValueError as error:
        return Finding(FAIL, "cluster", str(error)), None
    if cluster is None:
        return Finding(NOTE, "cluster", "one process, no cluster"), None
    source = cluster.source
    where = f"{cluster.named([cluster.rank])} of {cluster.num_workers}, from {source}"
    return Finding(OK, "cluster", where, facts={"found_by": source}), cluster


def examine(
    found: Cluster,
    look: Callable[[], list[Finding]],
    exchange: Callable[[], list[Finding]],
    show: Callable[[list[dict[str, Any]]], int],
    environment: Mapping[str, str] = os.environ,
    timeout: float | None = None,
) -> int:
    """Examine all workers of the cluster to which this process belongs.

    Args:
        found: the `Cluster` of several workers.
        look: function that returns the findings of this worker.
        exchange: function that lets all workers exchange gradients, and returns the findings.
        show: function that prints the reports of all workers, each as `report_of` returns it with
            the "name" of the worker, on worker 0, and returns the exit status.
        environment: the variables, such as the secret and the timeout. Defaults to ``os.environ``.
        timeout: seconds to wait for the other workers. Defaults to the timeout of a training.

    Returns:
        The exit status, the same on all workers that have joined.
    """
    seconds = environment_variables.start_timeout(timeout, environment)
    tensorflow = installed_version("tensorflow") or installed_version("tensorflow-cpu")
    settings = {"program": "tf-adasum-doctor", "tf_adasum": __version__}
    settings |= {"tensorflow": series(tensorflow or ""), "keras": installed_version("keras") or ""}
    try:
        with contextlib.closing(Participant(found, environment)) as met:
            if not found.addresses:
                met.join(seconds)
            met.meet(settings, {}, seconds)
            findings: list[Finding] = []
            with ports.listening_socket(met.cluster):  # until all have looked
                findings += [*_links(met.cluster), *look()]
                status = _compared(met, _LOOK, findings, show)
            if status == 0:
                findings += run(exchange)
                status = _compared(met, _EXCHANGE, findings, show)
            return status
    except (OSError, ValueError, WorkerLostError) as error:
        fix = "start the doctor on all workers, in the same way"
        finding = Finding(FAIL, "cluster", describe(error), fix)
        if found.rank > 0:
            print(finding, file=sys.stderr, flush=True)
            time.sleep(_SECONDS_FOR_WORKER_0)  # until worker 0 has reported this error
            return 1
        # Print at once, because a launcher ends worker 0 soon after the other workers.
        return show([{"name": found.names[0], **report_of([finding])}])


def _links(cluster: Cluster) -> list[Finding]:
    """Return which other workers this worker cannot reach at the ports of a training."""
    others = [rank for rank in range(cluster.num_workers) if rank != cluster.rank]
    until = time.monotonic() + PATIENCE_SECONDS  # not all of them listen yet
    while True:
        words = connect_errors([cluster.host_and_port(rank) for rank in others])
        failed = [(rank, word) for rank, word in zip(others, words, strict=True) if word]
        if not failed or time.monotonic() > until:
            break
        time.sleep(HEARTBEAT_SECONDS)
    texts = [f"{cluster.named([rank])} cannot be reached: {word}" for rank, word in failed]
    if not texts:
        return [Finding(OK, "links", "all other workers can be reached")]
    return [Finding(FAIL, "links", text, "open the port in the firewall") for text in texts]


def _compared(
    met: Participant,
    step: str,
    findings: list[Finding],
    show: Callable[[list[dict[str, Any]]], int],
) -> int:
    """Wait until all workers have done a step. After the last step, worker 0 prints all reports.

    Returns:
        0 if all are usable, otherwise 1, on all workers.
    """
    own = report_of(findings)
    if met.cluster.rank > 0:
        return _follow(met, step, own)
    reports = _collected(met, step, own)
    status = int(not all(each["usable"] for each in reports))
    if status or step == _EXCHANGE:
        show(reports)
    met.publish(step, status)
    return status


def _collected(met: Participant, step: str, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the reports of all workers about a step, which worker 0 receives."""
    cluster, reports = met.cluster, {0: own}
    until = time.monotonic() + _SECONDS_TO_LOOK
    while len(reports) < cluster.num_workers and time.monotonic() < until:
        while met.round.arrived:
            rank, value = met.round.arrived.popleft()
            if value is None:
                reports.setdefault(rank, _missing("was lost: its connection was closed"))
            elif isinstance(value, dict) and isinstance(value.get(step), dict):
                reports[rank] = value[step]
        time.sleep(POLL_SECONDS)
    return [
        {"name": cluster.named([rank]), **reports.get(rank, _missing("does not answer"))}
        for rank in range(cluster.num_workers)
    ]


def _missing(why: str) -> dict[str, Any]:
    return {**report_of([Finding(FAIL, "cluster", why)]), "host": "?"}


def _follow(met: Participant, step: str, own: dict[str, Any]) -> int:
    """Send the report of this worker to worker 0, and return the status that it sends."""
    session = met.session
    session.set({step: own})
    while True:
        is_over = session.is_over  # before the last look at the key
        if type(status := session.value(step)) is int:
            return status
        if is_over:
            raise ConnectionError(f"{met.cluster.named([0])} was lost")
        session.wait(POLL_SECONDS)
