"""A value that a context manager sets for its thread. Standard library only."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class ThreadFlag(threading.local):
    """A value of each thread, because another thread may run a call at the same time.

    Attributes:
        value: the value that the innermost `within` of this thread has set, or None.
    """

    value: Any = None

    @contextlib.contextmanager
    def within(self, value: Any = True) -> Iterator[None]:
        """Return a context manager in which this thread has a value."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
