"""Messages of the failure detector on stderr.

If stderr cannot be written to, the thread continues: without failure detector workers would wait
forever for each other. Standard library only.
"""

from __future__ import annotations

import contextlib
import sys
import traceback


def say(text: str) -> None:
    """Write a line in one piece, because other threads also write."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        print(f"tf_adasum: {text}\n", end="", file=sys.stderr, flush=True)


def say_exception() -> None:
    """Write the traceback of the exception that is handled."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exc()
