"""Read the status of the workers of this machine for ``--status``.

Each worker writes its status to a file, see `tf_adasum.health.status_file`. Uses only the standard
library.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import re
import socket
import time

from tf_adasum.health import status_file
from tf_adasum.launch.failures import in_words

# A worker whose status is older than this is shown as silent.
_SECONDS_TO_WRITE = 10.0

_SECONDS_OF_A_RATE = 10.0  # the time over which steps per second are measured


@dataclasses.dataclass(frozen=True)
class Row:
    """The status of a worker.

    Attributes:
        rank: the rank of the worker.
        host: the name of the worker's machine.
        state: "starting", "running", "training", "waiting", "silent", "ended" or "failed".
        more: details of the state, such as "epoch 2" or "12 s"; "" without details.
        step: the number of steps in the current training; None before the first status.
        rate: steps per second over about the last 10 seconds; None if it is not known.
        behind: the number of steps by which the fastest worker is ahead; None before the first
            status.
    """

    rank: int
    host: str
    state: str
    more: str = ""
    step: int | None = None
    rate: float | None = None
    behind: int | None = None


class Board:
    """The status of all workers of this machine.

    Args:
        folder: an empty directory for the workers' files.
        ranks: the ranks of the workers.
    """

    def __init__(self, folder: str, ranks: range):
        self._folder, self._ranks = folder, ranks
        self._host = socket.gethostname()
        self.begin()

    def begin(self) -> None:
        """Delete the status of an earlier start."""
        self._codes: dict[int, int] = {}
        self._samples = {rank: collections.deque[tuple[float, int]]() for rank in self._ranks}
        for rank in self._ranks:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path(rank))

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variable with the path of a worker's file."""
        return {status_file.NAME: self._path(rank)}

    def end(self, rank: int, code: int) -> None:
        """Note that a worker has ended.

        Args:
            rank: the rank of the worker.
            code: the worker's exit status; 0 if the worker was stopped or did not fail.
        """
        self._codes[rank] = code

    def rows(self) -> list[Row]:
        """Read the files, and return a row for each worker."""
        rows = [self._row(rank) for rank in self._ranks]
        fastest = max((row.step for row in rows if row.step is not None), default=0)
        return [
            row if row.step is None else dataclasses.replace(row, behind=fastest - row.step)
            for row in rows
        ]

    def line(self) -> str:
        """Return the status of all workers in one line."""
        rows = self.rows()
        steps = [row.step for row in rows if row.step is not None]
        rates = [row.rate for row in rows if row.rate is not None]
        of_state: dict[str, list[int]] = {}
        for row in rows:
            of_state.setdefault(row.state, []).append(row.rank)
        parts = [f"step {max(steps)}"] if steps else []
        parts += [f"slowest at {min(steps)}"] if steps and min(steps) < max(steps) else []
        parts += [f"{min(rates):.1f} steps/s"] if rates else []
        parts += [f"{in_words(ranks)} {state}" for state, ranks in of_state.items()]
        return f"status: {', '.join(parts)}"

    def _path(self, rank):
        return os.path.join(self._folder, f"worker-{rank}.json")

    def _row(self, rank):
        status = {}
        with contextlib.suppress(OSError, ValueError), open(self._path(rank)) as file:
            status = json.load(file)
        state, more = self._state(rank, status)
        if not status:
            return Row(rank, self._host, state, more)
        is_over = rank in self._codes
        rate = None if is_over else self._rate(rank, status["time"], status["step"])
        return Row(rank, self._host, state, more, status["step"], rate)

    def _state(self, rank, status):
        if rank in self._codes:
            code = self._codes[rank]
            return ("failed", f"exit status {code}") if code else ("ended", "")
        if not status:
            return "starting", ""
        silent = time.time() - status["time"]
        if silent > _SECONDS_TO_WRITE:
            return "silent", f"{silent:.0f} s"
        if status["waits"] > 0:
            return "waiting", f"{status['waits']:.0f} s"
        if not re.match(r"in (.* )?fit\b", status["doing"]):
            return "running", status["doing"]
        epoch = re.search(r"epoch \d+", status["doing"])
        return "training", epoch[0] if epoch else ""

    def _rate(self, rank, at, step):
        samples = self._samples[rank]
        if samples and step < samples[-1][1]:  # another training has begun
            samples.clear()
        if not samples or at > samples[-1][0]:
            samples.append((at, step))
        while len(samples) > 2 and at - samples[0][0] > _SECONDS_OF_A_RATE:
            samples.popleft()
        (since, first), (_, last) = samples[0], samples[-1]
        return (last - first) / (at - since) if at > since else None
