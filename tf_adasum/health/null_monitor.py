"""Replaces the failure detector in a process that trains alone. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tf_adasum.health.diagnosis import CollectiveErrorOf, Status
from tf_adasum.health.graceful_stop import GracefulStop


class NullMonitor:
    """The failure detector of a process that trains alone, see `monitor.HealthMonitor`."""

    cause = seed = None
    status = Status()

    def __init__(self) -> None:
        self.stopping = GracefulStop(0, 1)

    @staticmethod
    @contextlib.contextmanager
    def call(error_of: CollectiveErrorOf) -> Iterator[None]:
        """Return a context manager that does nothing, because there are no other workers."""
        del error_of
        yield

    @staticmethod
    def others_fit_without_strategy() -> bool:
        """Return False, because there are no other workers."""
        return False
