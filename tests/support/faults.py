"""Faults that happen to one of several workers, played with real processes."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from support.worker_group import free_ports, worker_environment

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Outcome:
    """What has become of one worker.

    Attributes:
        error: type of the exception; None if it trained to the end.
        message: of the exception.
        seconds: from the fault to the exception; None if it said nothing.
        seconds_to_end: from the fault to the end of its process; None if it hung, and was killed.
        code: exit code.
        output: everything it wrote.
    """

    error: str | None
    message: str
    seconds: float | None
    seconds_to_end: float | None
    code: int
    output: str


def play(folder, *, workers=2, victim=1, limit=90.0, **asked):
    """Let workers train until a fault happens to one of them.

    Args:
        folder: an empty one.
        workers: how many.
        victim: to which the fault happens.
        limit: seconds after the fault (or the start) to wait for the others.
        asked: `fault`, `moment` (with `after`, seconds, for "any"), `call` (default: `fit`),
            `epochs`, `timeout`, `strategy`, see `faulty_worker`.

    Returns:
        dict from the other workers' ranks to their `Outcome`.
    """
    folder = pathlib.Path(folder)
    asked = {"strategy": "adasum", "timeout": None, **asked}
    asked |= {"victim": victim, "folder": str(folder)}
    ports = free_ports(workers)
    processes = []
    for rank in range(workers):
        with open(folder / f"{rank}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-u", str(HERE / "faulty_worker.py"), json.dumps(asked)],
                env=worker_environment(ports, rank, devices=1),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        processes.append(process)
    others = [rank for rank in range(workers) if rank != victim]
    ends = {}
    try:
        start = time.monotonic()
        while len(ends) < len(others):
            now = time.monotonic()
            begin = _time_of_fault(folder)
            if now > (begin or start + 60) + limit:
                break
            for rank in others:
                if rank not in ends and processes[rank].poll() is not None:
                    ends[rank] = now
            time.sleep(0.05)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
    begin = _time_of_fault(folder)
    return {
        rank: _outcome(folder, rank, begin, ends.get(rank), processes[rank].returncode)
        for rank in others
    }


def _time_of_fault(folder):
    path = folder / "time"
    text = path.read_text() if path.exists() else ""
    return float(text) if text else None


def _outcome(folder, rank, begin, end, code):
    output = (folder / f"{rank}.log").read_text(errors="replace")
    reports = [line for line in output.splitlines() if line.startswith('{"type": ')]
    said = json.loads(reports[-1]) if reports else {}
    return Outcome(
        error=said.get("type"),
        message=said.get("message", ""),
        seconds=said["time"] - begin if said and begin else None,
        seconds_to_end=end - begin if end and begin else None,
        code=code,
        output=output,
    )
