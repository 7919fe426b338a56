"""Reads the environment variables that administrators set. Standard library only."""

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
        given: ``communication_options.timeout_seconds``, which is returned if it is set.
        environment: the environment variables. Defaults to ``os.environ``.

    Raises:
        ValueError: if the variable is not a positive number.
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


def failure_detector_port(environment: Mapping[str, str] = os.environ) -> int:
    """Return worker 0's port for the failure detector; 0 lets the system choose a port.

    Args:
        environment: the environment variables. Defaults to ``os.environ``.

    Raises:
        ValueError: if the variable is not a port.
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
