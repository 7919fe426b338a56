"""Faults of workers or their network, injected into real processes."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from support.pace import PACE
from support.worker_group import free_ports, worker_environment

WORKER = pathlib.Path(__file__).with_name("faulty_worker.py")
PORT = 2222  # of each worker's TensorFlow, on a host of its own
STARTUP_TIMEOUT = 60.0 * PACE  # to the start, and from there to the fault


@dataclasses.dataclass
class Outcome:
    """What has become of one worker.

    Attributes:
        error: type of the exception; None if it trained to the end.
        message: of the exception.
        digest: of the weights, if it trained to the end.
        seconds: from the fault to the exception or to the end of training; None if it said nothing.
        seconds_to_end: from the fault to the end of its process; None if it hung, and was killed.
        code: exit status.
        output: everything it wrote.
    """

    error: str | None
    message: str
    digest: str | None
    seconds: float | None
    seconds_to_end: float | None
    code: int
    output: str


def run(
    folder,
    *,
    workers=2,
    victim=1,
    limit=90.0,
    awaited=None,
    popens=None,
    hosts=None,
    is_joining=False,
    steps=(),
    coming=STARTUP_TIMEOUT,
    on_start=lambda: None,
    **asked,
):
    """Let workers train until a fault happens.

    Args:
        folder: an empty one.
        workers: how many.
        victim: the worker to which the fault happens; with `steps` the one that reaches
            the injection point.
        limit: seconds of a quiet machine after the fault (or the start) to wait for the others.
        awaited: ranks of the workers to wait for. Defaults to None: all but the victim.
        popens: for each worker, a function that starts its process. Defaults to None: Popen.
        hosts: for each worker the host in its address. Defaults to None: this machine.
        is_joining: whether workers are told worker 0's address alone, and not all addresses.
        steps: pairs of seconds after the injection point and a function of all processes: the
            fault, if it happens from outside. With the injection point "before" the first one
            comes before they start.
        coming: seconds that the victim may take to the injection point, and all before they start.
        on_start: function that is called when all workers are there: they start together then.
        asked: `fault`, `injection_point`, `call` (default: `fit`), `timeout`, `strategy`, see
            `faulty_worker`.

    Returns:
        dict from the ranks awaited to their `Outcome`.
    """
    folder, steps, limit = pathlib.Path(folder), list(steps), limit * PACE
    asked = {"strategy": "adasum", "timeout": None, "fault": "outside", **asked}
    asked |= {"victim": victim, "folder": str(folder), "seconds": 2 * coming + limit}
    popens = popens or [subprocess.Popen] * workers
    ports = [PORT] * workers if hosts else free_ports(workers)
    command = [sys.executable, "-u", str(WORKER), json.dumps(asked)]
    processes, ends, begin, start = [], {}, None, None
    if awaited is None:
        awaited = [rank for rank in range(workers) if rank != victim]
    deadline = time.monotonic() + coming
    try:
        for rank in range(workers):
            environment = worker_environment(ports, rank, 1, hosts)
            if is_joining:
                environment = _told_of_worker_0(environment)
            with open(folder / f"{rank}.log", "wb") as log:
                pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                processes.append(popens[rank](command, env=environment, **pipes))
        while len(ends) < len(awaited) and time.monotonic() < deadline:
            if start is None and all((folder / f"here-{n}").exists() for n in range(workers)):
                start = time.monotonic()
                deadline = start + coming + limit
                if asked["injection_point"] == "before":
                    (folder / "time").write_text(str(start))
                    _act(steps, start, processes)
                (folder / "start").touch()
                on_start()
            if begin is None and (begin := _time_of_fault(folder)) is not None:
                deadline = begin + limit
                _act(steps, begin, processes)
                (folder / "happened").touch()
            if begin is not None:
                _act(steps, begin, processes)
            for rank in awaited:
                if rank not in ends and processes[rank].poll() is not None:
                    ends[rank] = time.monotonic()
            time.sleep(0.05)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
    begin = _time_of_fault(folder)
    return {
        rank: _outcome(folder, rank, begin, ends.get(rank), processes[rank].returncode)
        for rank in awaited
    }


def _told_of_worker_0(environment):
    """Return a worker's environment that says where worker 0 is instead of where all are."""
    told = json.loads(environment["TF_CONFIG"])
    addresses = told["cluster"]["worker"]
    return environment | {
        "TF_CONFIG": "",
        "TF_ADASUM_COORDINATOR": addresses[0],
        "TF_ADASUM_RANK": str(told["task"]["index"]),
        "TF_ADASUM_WORLD_SIZE": str(len(addresses)),
    }


def _act(steps, begin, processes):
    """Take the steps whose time has come."""
    while steps and time.monotonic() >= begin + steps[0][0]:
        _, step = steps.pop(0)
        step(processes)


def _time_of_fault(folder):
    path = folder / "time"
    return float((path.exists() and path.read_text()) or 0) or None


def _outcome(folder, rank, begin, end, code):
    output = (folder / f"{rank}.log").read_text(errors="replace")
    reports = [line for line in output.splitlines() if line.startswith('{"type": ')]
    said = json.loads(reports[-1]) if reports else {}
    return Outcome(
        error=said.get("type"),
        message=said.get("message", ""),
        digest=said.get("digest"),
        seconds=said["time"] - begin if said and begin else None,
        seconds_to_end=end - begin if end and begin else None,
        code=code,
        output=output,
    )
