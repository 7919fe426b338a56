"""Read the status of the workers of this machine for ``--status``.

Each worker writes its status to a file, see `tf_adasum.health.status_file`. Uses only the standard
library.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import time
from typing import Any

from tf_adasum.health import status_file
from tf_adasum.launch.failures import in_words

# A worker whose status is older than this is shown as silent.
_SECONDS_TO_WRITE = 10.0

_SECONDS_OF_A_RATE = 60.0  # the time over which steps per second are measured


class Board:
    """The status of all workers of this machine.

    Args:
        folder: an empty directory for the workers' files.
        ranks: the ranks of the workers.
    """

    def __init__(self, folder: str, ranks: range):
        self._folder, self._ranks = folder, ranks
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

    def line(self) -> str:
        """Read the files, and return the status of all workers in one line."""
        steps, rates = [], []
        of_state: dict[str, list[int]] = {}
        for rank in self._ranks:
            status = self._read(rank)
            of_state.setdefault(self._state(rank, status), []).append(rank)
            if status:
                steps.append(status["step"])
                rates.append(self._rate(rank, status["time"], status["step"]))
        rates = [rate for rate in rates if rate is not None]
        parts = [f"step {max(steps)}"] if steps else []
        parts += [f"slowest at {min(steps)}"] if steps and min(steps) < max(steps) else []
        parts += [f"{min(rates):.1f} steps/s"] if rates else []
        parts += [f"{in_words(ranks)} {state}" for state, ranks in of_state.items()]
        return f"status: {', '.join(parts)}"

    def _path(self, rank: int) -> str:
        return os.path.join(self._folder, f"worker-{rank}.json")

    def _read(self, rank: int) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError), open(self._path(rank)) as file:
            return json.load(file)
        return {}

    def _state(self, rank: int, status: dict[str, Any]) -> str:
        if rank in self._codes:
            return "failed" if self._codes[rank] else "ended"
        if not status:
            return "starting"
        if time.time() - status["time"] > _SECONDS_TO_WRITE:
            return "silent"
        if status["waits"] > 0:
            return f"waiting for {status['waits']:.0f} s"
        return str(status["doing"] or "running")

    def _rate(self, rank: int, at: float, step: int) -> float | None:
        """Return the steps per second over about the last minute; None if they are not known."""
        if rank in self._codes:
            return None
        samples = self._samples[rank]
        if samples and step < samples[-1][1]:  # another training has begun
            samples.clear()
        if not samples or at > samples[-1][0]:
            samples.append((at, step))
        while len(samples) > 2 and at - samples[0][0] > _SECONDS_OF_A_RATE:
            samples.popleft()
        (since, first), (_, last) = samples[0], samples[-1]
        return (last - first) / (at - since) if at > since else None
