"""Chooses the transport of a strategy, from its argument or the environment variable.

Standard library only.
"""

import os
from collections.abc import Mapping, Sequence

from tf_adasum.environment_variables import TRANSPORT
from tf_adasum.errors import see

AUTO, TENSORFLOW, UCX = NAMES = ("auto", "tensorflow", "ucx")

# These limits follow from the bits in the tags of UCX's messages.
MOST_REPLICAS, MOST_DEVICES = 2**16, 2**8


def requested(
    transport: str | None, devices: Sequence[str], environment: Mapping[str, str] = os.environ
) -> str:
    """Return ``"auto"``, ``"tensorflow"`` or ``"ucx"``.

    Args:
        transport: the strategy's argument. If it is None, the environment variable
            ``TF_ADASUM_TRANSPORT`` is used, or ``"auto"`` if the variable is not set.
        devices: names of this worker's devices.
        environment: the environment variables. Defaults to ``os.environ``.

    Raises:
        ValueError: if the name is unknown, or if it is ``"ucx"`` and UCX cannot send the gradients
            of these devices, see `unsupported_reason`.
    """
    given, name = f"transport={transport!r}", transport
    if transport is None:
        name = environment.get(TRANSPORT) or AUTO
        given = f"{TRANSPORT}={name!r}"
    if name not in NAMES:
        where = f"The environment variable {TRANSPORT}" if transport is None else "`transport`"
        raise ValueError(f"{where} must be one of {', '.join(NAMES)}. Received: {given}")
    if name == UCX and (why_not := unsupported_reason(devices)):
        raise ValueError(
            f"UCX cannot be used: {why_not}. Use transport='tensorflow'. Received: {given} "
            f"{see('TFA-213')}"
        )
    return name


def unsupported_reason(devices: Sequence[str], workers: int = 1) -> str:
    """Return why UCX cannot send the gradients of some devices; "" if it can.

    Args:
        devices: names of this worker's devices.
        workers: the number of workers, each with this number of devices. Defaults to 1.
    """
    others = [device for device in devices if "CPU" not in device.upper()]
    if others:
        return f"gradients on GPUs are sent over NCCL (devices {', '.join(others)})"
    if len(devices) > MOST_DEVICES or len(devices) * workers > MOST_REPLICAS:
        return f"it supports at most {MOST_REPLICAS} replicas and {MOST_DEVICES} devices per worker"
    return ""
