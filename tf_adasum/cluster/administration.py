"""What administrators set from outside of the script. Standard library only."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

START_TIMEOUT = "TF_ADASUM_START_TIMEOUT"
WATCH_PORT = "TF_ADASUM_WATCH_PORT"

DEFAULT_START_TIMEOUT = 60.0


def start_timeout(given: float | None, environment: Mapping[str, str] = os.environ) -> float:
    """Return for how many seconds workers wait for each other at the start.

    Args:
        given: ``communication_options.timeout_seconds``, which counts first.
        environment: where the variable is. Defaults to ``os.environ``.

    Raises:
        ValueError: if the variable is no positive number.
    """
    text = environment.get(START_TIMEOUT, "")
    try:
        seconds = float(text) if text else DEFAULT_START_TIMEOUT
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"The environment variable {START_TIMEOUT} must be a number of seconds greater than 0. "
            f"Received: {START_TIMEOUT}={text!r}"
        )
    return given or seconds


def watch_port(environment: Mapping[str, str] = os.environ) -> int:
    """Return the port of worker 0 for the watch; 0 for one that the system chooses.

    Args:
        environment: where the variable is. Defaults to ``os.environ``.

    Raises:
        ValueError: if the variable is no port.
    """
    text = environment.get(WATCH_PORT, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) < 1 << 16):
        raise ValueError(
            f"The environment variable {WATCH_PORT} must be a port from 1 to 65535. "
            f"Received: {WATCH_PORT}={text!r}"
        )
    return int(text)
