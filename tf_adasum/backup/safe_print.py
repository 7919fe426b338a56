"""Prints why training stops, even if stdout or stderr is closed.

A signal that stops the training may also end a `tee` that reads the output. Standard library only.
"""

import contextlib
import os
import sys


def write_at_once(text: str) -> None:
    """Write a line to stderr without `print`, because a signal may have interrupted a `print`."""
    with contextlib.suppress(OSError):
        os.write(2, f"tf_adasum: {text}\n".encode())


def print_and_flush(text: str = "") -> None:
    """Write a line to stdout, and flush the buffers of stdout and stderr.

    Output that cannot be written is dropped. Otherwise, Python would try to write it again when the
    process ends, and would change the exit status to 120.
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
