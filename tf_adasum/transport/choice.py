"""Which transport a strategy takes: its argument, or the variable of administrators.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tf_adasum.errors import see

VARIABLE = "TF_ADASUM_TRANSPORT"
AUTO, TENSORFLOW, UCX = NAMES = ("auto", "tensorflow", "ucx")

# What the tags of UCX's messages have bits for.
MOST_REPLICAS, MOST_DEVICES = 2**16, 2**8


def chosen(
    transport: str | None, devices: Sequence[str], environment: Mapping[str, str] = os.environ
) -> str:
    """Return ``"auto"``, ``"tensorflow"`` or ``"ucx"``.

    Args:
        transport: the strategy's argument; None for what the variable says, else ``"auto"``.
        devices: names of this worker's devices.
        environment: where the variable is. Defaults to ``os.environ``.

    Raises:
        ValueError: for another name; for UCX and devices that are no CPUs.
    """
    given, name = f"transport={transport!r}", transport
    if transport is None:
        name = environment.get(VARIABLE) or AUTO
        given = f"{VARIABLE}={name!r}"
    if name not in NAMES:
        where = f"The environment variable {VARIABLE}" if transport is None else "`transport`"
        raise ValueError(f"{where} must be one of {', '.join(NAMES)}. Received: {given}")
    if name == UCX and (why_not := obstacle(devices)):
        raise ValueError(
            f"UCX cannot be used: {why_not}. Use transport='tensorflow'. Received: {given} "
            f"{see('TFA-213')}"
        )
    return name


def obstacle(devices: Sequence[str], workers: int = 1) -> str:
    """Return why UCX cannot carry the gradients of some devices; "" if it can.

    Args:
        devices: names of this worker's devices.
        workers: how many have as many devices. Defaults to 1.
    """
    others = [device for device in devices if "CPU" not in device.upper()]
    if others:
        return f"the gradients of GPUs go over NCCL (devices {', '.join(others)})"
    if len(devices) > MOST_DEVICES or len(devices) * workers > MOST_REPLICAS:
        return (
            f"it carries the gradients of at most {MOST_REPLICAS} replicas and {MOST_DEVICES} "
            "devices per worker"
        )
    return ""
