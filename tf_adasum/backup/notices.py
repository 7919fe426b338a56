"""Prints why training stops, even if nobody reads it: the same signal may have ended a `tee`.

Standard library only.
"""

import contextlib
import os
import sys


def say_at_once(text: str) -> None:
    """Write a line to stderr; `print` may be interrupted in the middle of another one."""
    with contextlib.suppress(OSError):
        os.write(2, f"tf_adasum: {text}\n".encode())


def say_at_the_end(text: str = "") -> None:
    """Write a line to stdout, and flush the buffers of stdout and stderr.

    Output that cannot be written is dropped: at its exit Python would try again, and change the
    exit status to 120.
    """
    if text:
        with contextlib.suppress(OSError, ValueError):
            print(f"tf_adasum: {text}")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _send_nowhere(stream)
        except (AttributeError, ValueError):  # there is no stream, or it is closed
            pass


def _send_nowhere(stream):
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
