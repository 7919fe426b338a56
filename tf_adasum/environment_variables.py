"""The environment variables that users and administrators set; docs/commands.md.

Standard library only.
"""

import contextlib
import difflib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

PREFIX = "TF_ADASUM_"

COORDINATOR = "TF_ADASUM_COORDINATOR"
RANK = "TF_ADASUM_RANK"
WORLD_SIZE = "TF_ADASUM_WORLD_SIZE"
DEVICES_PER_WORKER = "TF_ADASUM_DEVICES_PER_WORKER"
INTERFACE = "TF_ADASUM_INTERFACE"
START_TIMEOUT = "TF_ADASUM_START_TIMEOUT"
SECRET = "TF_ADASUM_SECRET"
SECRET_FILE = "TF_ADASUM_SECRET_FILE"
TRANSPORT = "TF_ADASUM_TRANSPORT"
OPS = "TF_ADASUM_OPS"

ALL = (
    *(COORDINATOR, RANK, WORLD_SIZE, DEVICES_PER_WORKER, INTERFACE, START_TIMEOUT),
    *(SECRET, SECRET_FILE, TRANSPORT, OPS),
)

DEFAULT_START_TIMEOUT = 60.0

_Number = TypeVar("_Number", int, float)


def start_timeout(given: float | None, environment: Mapping[str, str] = os.environ) -> float:
    """Return for how many seconds workers wait for each other at the start.

    Args:
        given: the argument `start_timeout` of the strategy, which is returned if it is set.
        environment: the environment variables. Defaults to ``os.environ``.

    Raises:
        ValueError: if the variable is not a positive number.
    """
    wanted = "a number of seconds greater than 0"
    seconds = _read(START_TIMEOUT, environment, float, wanted)
    return given or seconds or DEFAULT_START_TIMEOUT


def devices_per_worker(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of devices that each worker uses; None if the variable is not set.

    Args:
        environment: the environment variables. Defaults to ``os.environ``.

    Raises:
        ValueError: if the variable is not a whole number of at least 1.
    """
    return _read(DEVICES_PER_WORKER, environment, _count, "a whole number of at least 1")


def misspelt() -> Iterator[str]:
    """Yield a sentence for each variable that has almost the name of another one."""
    short = [name.removeprefix(PREFIX) for name in ALL]
    own = {name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX)}
    for given in sorted(own.difference(short)):
        for meant in difflib.get_close_matches(given, short, n=1, cutoff=0.8):
            yield (
                f"The environment variable {PREFIX}{given} has no effect. Do you mean "
                f"{PREFIX}{meant}?"
            )


def _read(
    name: str, environment: Mapping[str, str], parse: Callable[[str], _Number], wanted: str
) -> _Number | None:
    """Return the number in a variable; None if the variable is not set, or empty."""
    text = environment.get(name)
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if 0 < (number := parse(text)) < math.inf:
            return number
    raise ValueError(f"The environment variable {name} must be {wanted}. Received: {name}={text!r}")


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
