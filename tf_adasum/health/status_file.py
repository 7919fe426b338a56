"""Writes what this worker does to a file, for the launcher's ``--status``.

Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable

from tf_adasum.health import call_log

NAME = "TF_ADASUM_STATUS_FILE"  # the environment variable with the file's path

_step = 0  # of the current training, over all epochs
_has_begun = False  # whether `begin` has started the thread


def is_wanted() -> bool:
    """Return whether the launcher reads the status of this worker."""
    return bool(os.environ.get(NAME))


def set_step(step: int) -> None:
    """Set the number of steps that the current training has taken."""
    global _step
    _step = step


def begin(waits: Callable[[], float]) -> None:
    """Write the status each second and when the process ends, if the launcher reads the status.

    Args:
        waits: function that returns for how many seconds this worker has waited for the others.
    """
    global _has_begun
    if not is_wanted() or _has_begun:
        return
    _has_begun, path = True, os.environ[NAME]

    def write() -> None:
        status = {"step": _step, "doing": call_log.doing(), "waits": waits(), "time": time.time()}
        with contextlib.suppress(OSError):  # the launcher has ended, or the disk is full
            with open(f"{path}.new", "w") as file:
                json.dump(status, file)
            os.replace(f"{path}.new", path)

    def run() -> None:
        while True:
            write()
            time.sleep(1 - time.time() % 1)  # all write when a second begins

    atexit.register(write)
    threading.Thread(target=run, daemon=True, name="tf_adasum status").start()
