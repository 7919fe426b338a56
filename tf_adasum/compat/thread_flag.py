"""A flag that a context manager sets for its thread. Standard library only."""

import contextlib
import threading
from collections.abc import Iterator


class ThreadFlag(threading.local):
    """A flag of each thread, because another thread may run a call at the same time.

    Attributes:
        is_set: whether this thread is in `within`.
    """

    is_set = False

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Return a context manager in which the flag of this thread is set."""
        had, self.is_set = self.is_set, True
        try:
            yield
        finally:
            self.is_set = had
