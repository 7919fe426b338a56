"""What the watch says on stderr, if that can be written.

Its thread goes on where it cannot: workers whose watch has ended wait without end for each other.
Standard library only.
"""

from __future__ import annotations

import contextlib
import sys
import traceback


def say(text: str) -> None:
    """Write a line, in one piece: other threads write, too."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        print(f"tf_adasum: {text}\n", end="", file=sys.stderr, flush=True)


def say_exception() -> None:
    """Write the traceback of the exception that is handled."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exc()
