"""Lets all workers agree on the point at which a training stops on request.

A *stop point* is a point at which a training can stop, such as before a batch. All workers reach
the same stop points in the same order, and count them.

    a worker is asked to stop
      ──▶ each worker holds at its next stop point, and sends worker 0 how many it has passed
      ──▶ all workers stop at the first stop point that no worker has passed

Once any worker is asked to stop, each worker waits at its next stop point until it receives the
agreed stop point. So the last status of this worker stays true, even while it waits for others in a
step. As long as no worker is asked to stop, a worker passes a stop point without waiting. The
workers exchange all data in their statuses, see `Status`.

Standard library only.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum.cluster.timeouts import POLL_SECONDS
from tf_adasum.errors import WorkerLostError
from tf_adasum.health.diagnosis import Status


class GracefulStop:
    """Agrees with the other workers on where to stop; one object is used for all trainings.

    Args:
        rank: the rank of this worker.
        workers: the number of workers.
        cause: function that returns why this worker cannot continue, or None if it can.

    Attributes:
        requested_here: whether this worker was asked to stop the training; set from a signal
            handler.
        stop_requested: whether this worker knows that any worker was asked to stop.
        has_unsent_status: whether the status has to be sent to the other workers.
    """

    def __init__(self, rank: int, workers: int, cause: Callable[[], str | None] = lambda: None):
        self._rank, self._workers, self._cause = rank, workers, cause
        self._change = threading.Condition()
        self._trainings, self._training = 0, 0
        self._waits_since: float | None = None
        self._reset()

    def _reset(self) -> None:
        self.requested_here = False
        self._holds, self._passed, self._stop_at = False, 0, 0

    @property
    def stop_requested(self) -> bool:
        """Whether this worker knows that any worker was asked to stop."""
        return self.requested_here or self._holds

    @property
    def has_unsent_status(self) -> bool:
        """Whether the other workers do not know yet that this worker was asked to stop."""
        return self.requested_here and not self._holds

    def begin(self) -> None:
        """Begin a training; all workers call this."""
        with self._change:
            self._reset()
            self._trainings += 1
            self._training = self._trainings

    def end(self) -> None:
        """End the training, which has no more stop points."""
        with self._change:
            self._training = 0
            self._reset()

    def stops_here(self) -> bool:
        """Return whether the training stops here; all workers call this at each stop point.

        Raises:
            WorkerLostError: if this worker cannot continue while it waits for the other workers.
        """
        if not self._training:
            return False
        with self._change:
            if self.requested_here and self._workers == 1:
                return True
            if self.stop_requested and not self._stop_at:
                self._holds = True
                self._wait()
            if self._stop_at == self._passed + 1:
                return True
            self._passed += 1
            return False

    def _wait(self) -> None:
        self._waits_since = time.monotonic()
        try:
            while not self._stop_at:
                if cause := self._cause():
                    raise WorkerLostError(cause)
                self._change.wait(POLL_SECONDS)
        finally:
            self._waits_since = None

    # ---- called by the failure detector --------------------------------------------------------

    def waits(self) -> float:
        """Return for how many seconds this worker has waited for the agreed stop point."""
        since = self._waits_since
        return time.monotonic() - since if since is not None else 0.0

    def exchange(self, statuses: Mapping[int, Status]) -> dict[str, Any]:
        """Read the statuses of the other workers, and return fields for this worker's `Status`.

        Args:
            statuses: dict from the other workers' ranks to their last `Status`.
        """
        with self._change:
            here = {r: each for r, each in statuses.items() if each.training == self._training}
            is_requested = self.requested_here or any(each.stop_requested for each in here.values())
            self._holds |= is_requested and self._training > 0
            if self._holds and not self._stop_at:
                self._stop_at = self._agreed(here)
                self._change.notify_all()
            return {
                "training": self._training,
                "stop_requested": int(self._holds),
                "stop_points_passed": self._passed + 1 if self._holds else 0,
                "stop_at": self._stop_at,
            }

    def _agreed(self, here: Mapping[int, Status]) -> int:
        """Return the number of the agreed stop point, from 1 on; 0 if there is none yet."""
        if self._rank > 0:
            return here[0].stop_at if 0 in here else 0
        passed = [self._passed + 1, *(each.stop_points_passed for each in here.values())]
        return max(passed) if len(passed) == self._workers and all(passed) else 0
