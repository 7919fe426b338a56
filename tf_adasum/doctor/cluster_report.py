"""Check several workers: whether they join, reach each other, and have the same versions.

    rendezvous  the workers join, and compare their versions, as in training
    look        each worker tries to connect to the others, and checks what is installed
    exchange    if nothing has failed, all replicas combine gradients, as in training

After each step, each other worker sends its findings to worker 0 (`cluster.store`). Worker 0 prints
those of all after the last step, and then sends whether something has failed. No worker goes on
earlier, because a launcher would then end the other workers. Every wait has a timeout. Uses only
the standard library.
"""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tf_adasum import environment_variables
from tf_adasum._version import __version__, series
from tf_adasum.cluster import detection, ports
from tf_adasum.cluster.rendezvous import Participant
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, PATIENCE_SECONDS, POLL_SECONDS
from tf_adasum.doctor.findings import FAIL, NOTE, OK, WARN, Finding, describe, has_failed, run
from tf_adasum.errors import WorkerLostError
from tf_adasum.health.reachability import Reachability
from tf_adasum.launch.commands import installed_version

_SECONDS_TO_LOOK = 180.0
_SECONDS_FOR_WORKER_0 = 3.0


def find(environment: Mapping[str, str]) -> tuple[Finding, Cluster | None]:
    """Return a finding about the cluster in the environment, and the cluster.

    The second value is None if there is no cluster, or if its description is wrong.
    """
    try:
        cluster = detection.find(environment)
    except ValueError as error:
        return Finding(FAIL, "cluster", str(error)), None
    if cluster is None:
        return Finding(NOTE, "cluster", "one process, no cluster"), None
    own = cluster.named([cluster.rank])
    text = f"{own} of {cluster.num_workers}, from {cluster.source}"
    return Finding(OK, "cluster", text), cluster


def show(reports: Sequence[tuple[str, list[Finding]]]) -> int:
    """Print the findings of this worker, and what is wrong on the others; return the exit status.

    Args:
        reports: pairs of the name and the findings of each worker; the first is this worker.
    """
    (_, own), *others = reports
    print(*own, sep="\n")
    for name, findings in others:
        print(f"{FAIL if has_failed(findings) else OK:<4}  {name}")
        for each in findings:
            if each.level in (WARN, FAIL):
                print(each)
    sys.stdout.flush()
    return int(any(has_failed(findings) for _, findings in reports))


def examine(
    found: Cluster,
    look: Callable[[], list[Finding]],
    exchange: Callable[[], list[Finding]],
    environment: Mapping[str, str] = os.environ,
    timeout: float | None = None,
) -> int:
    """Examine all workers of the cluster to which this process belongs; worker 0 prints the report.

    Args:
        found: the `Cluster` of several workers.
        look: function that returns the findings of this worker.
        exchange: function that lets all workers exchange gradients, and returns the findings.
        environment: the variables, such as the secret and the timeout. Defaults to ``os.environ``.
        timeout: seconds to wait for the other workers. Defaults to the timeout of a training.

    Returns:
        The exit status, the same on all workers that have joined.
    """
    seconds = environment_variables.start_timeout(timeout, environment)
    tensorflow = series(installed_version("tensorflow", "tensorflow-cpu"))
    settings = {"program": "tf-adasum-doctor", "tf_adasum": __version__}
    settings |= {"tensorflow": tensorflow, "keras": installed_version("keras")}
    try:
        with contextlib.closing(Participant(found, environment)) as met:
            if not found.addresses:
                met.join(seconds)
            met.meet(settings, {}, seconds)
            with ports.listening_socket(met.cluster):  # until all have looked
                findings = [*_links(met.cluster), *look()]
                status = _compared(met, findings, is_last=False)
            if status == 0:
                findings += run(exchange)
                status = _compared(met, findings, is_last=True)
            return status
    except (OSError, ValueError, WorkerLostError) as error:
        fix = "start the doctor on all workers, in the same way"
        status = show([("", [Finding(FAIL, "cluster", describe(error), fix)])])
        if found.rank > 0:  # a launcher ends worker 0 soon after the other workers
            time.sleep(_SECONDS_FOR_WORKER_0)  # until worker 0 has reported this error
        return status


def _links(cluster: Cluster) -> list[Finding]:
    """Return which other workers this worker cannot reach at the ports of a training."""
    links, until = Reachability(cluster), time.monotonic() + PATIENCE_SECONDS
    while (cut := links.try_all()) and time.monotonic() < until:  # not all of them listen yet
        time.sleep(HEARTBEAT_SECONDS)
    if not cut:
        return [Finding(OK, "links", "all other workers can be reached")]
    text = f"{cluster.named([cluster.rank])} cannot reach {cut}"
    return [Finding(FAIL, "links", text, "open the port in the firewall")]


def _compared(met: Participant, findings: list[Finding], *, is_last: bool) -> int:
    """Wait until all workers have done a step. After the last step, worker 0 prints all findings.

    Returns:
        0 if nothing has failed, otherwise 1, on all workers.
    """
    if met.cluster.rank > 0:
        return _follow(met, findings)
    of_all = _collected(met, findings)
    status = int(any(map(has_failed, of_all.values())))
    if status or is_last:
        show([(met.cluster.named([rank]), of_all[rank]) for rank in sorted(of_all)])
    met.send({"status": status})
    return status


def _collected(met: Participant, own: list[Finding]) -> dict[int, list[Finding]]:
    """Return the findings of all workers by their ranks, which worker 0 receives."""
    found, until = {0: own}, time.monotonic() + _SECONDS_TO_LOOK
    while len(found) < met.cluster.num_workers and time.monotonic() < until:
        for rank, value in met.receive():
            if value is None:
                lost = Finding(FAIL, "cluster", "was lost: its connection was closed")
                found.setdefault(rank, [lost])
            else:
                found[rank] = [Finding(*each) for each in value["findings"]]
        time.sleep(POLL_SECONDS)
    silent = [Finding(FAIL, "cluster", "does not answer")]
    return {rank: found.get(rank, silent) for rank in range(met.cluster.num_workers)}


def _follow(met: Participant, own: list[Finding]) -> int:
    """Send the findings of this worker to worker 0, and return the status that it sends."""
    met.send({"findings": [dataclasses.astuple(each) for each in own]})
    while True:
        for _, value in met.receive():
            if value is None:
                raise ConnectionError(f"{met.cluster.named([0])} was lost")
            return int(value["status"])
        met.wait(POLL_SECONDS)
