"""Messages of the failure detector on stderr.

If nothing can be written to stderr, the failure detector continues. Without the failure detector,
workers would wait forever for each other. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback


def say(text: str) -> None:
    """Write a line in a single call, because other threads also write lines."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        print(f"tf_adasum: {text}\n", end="", file=sys.stderr, flush=True)


@functools.cache
def say_once(text: str) -> None:
    """Write a line, unless it was written before."""
    say(text)


def say_exception() -> None:
    """Write the traceback of the current exception."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exc()
