"""Finds the devices of this worker, each of which holds a replica.

Uses only public names of TensorFlow.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_adasum.environment_variables import DEVICES_PER_WORKER, devices_per_worker
from tf_adasum.errors import see


def local_devices(requested: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return this worker's devices, such as ``("GPU:0", "GPU:1")``.

    If devices are requested, they are used. Otherwise, all GPUs are used. If there is no GPU, all
    logical CPU devices are used. If the environment variable ``TF_ADASUM_DEVICES_PER_WORKER`` is
    set, only this number of GPUs or CPU devices is used. TensorFlow has one logical CPU device
    unless more are configured. If the environment variable requires more CPU devices and there is
    no GPU, this function configures more.

    Args:
        requested: device names such as ``"GPU:0"`` or ``"/device:CPU:1"``. Defaults to None.

    Raises:
        ValueError: if devices do not exist, repeat, or are of different types; if this worker has
            fewer devices than the environment variable requires.
    """
    if requested is not None:
        return _checked(requested)
    count = devices_per_worker()
    device_type, available = "GPU", _logical_devices("GPU")
    if not available:
        _configure_logical_cpus(count or 0)
        device_type, available = "CPU", _logical_devices("CPU")
    if not available:
        raise ValueError("TensorFlow has no device for a replica: no GPU and no CPU is visible.")
    if count and count > len(available):
        raise ValueError(
            f"{DEVICES_PER_WORKER}={count} asks for more devices than this worker has. "
            f"Received: {len(available)} {device_type} devices {see('TFA-209')}"
        )
    return tuple(available[:count])


def _checked(requested: Any) -> tuple[str, ...]:
    is_sequence = isinstance(requested, Iterable) and not isinstance(requested, str)
    given = list(requested) if is_sequence else []
    found = [_DEVICE_NAME.fullmatch(str(name)) for name in given]
    names = [f"{each[1].upper()}:{int(each[2])}" for each in found if each]
    available = _logical_devices("CPU") + _logical_devices("GPU")
    are_of_one_type = len({name.partition(":")[0] for name in names}) == 1
    are_distinct = len(set(names)) == len(given)
    if not (are_of_one_type and are_distinct and set(names) <= set(available)):
        raise ValueError(
            "`devices` must be a list of different devices of this worker, all GPUs or all CPUs, "
            f"such as ['GPU:0', 'GPU:1']. This worker has {', '.join(available)}. To create more "
            "logical CPUs, call tf.config.set_logical_device_configuration. Received: "
            f"devices={given if is_sequence else requested!r} {see('TFA-209')}"
        )
    return tuple(names)


_THIS_WORKER = r"(?:/job:localhost(?:/replica:0)?(?:/task:0)?)?"
_DEVICE_NAME = re.compile(_THIS_WORKER + r"(?:/device:|/)?([A-Za-z]+):(\d+)")


def _logical_devices(device_type: str) -> list[str]:
    """Return the names of the logical devices that exist, or will exist when the runtime starts.

    This function does not start TensorFlow's runtime, because several workers can only be set up
    before the runtime starts.
    """
    count = 0
    for physical in tf.config.get_visible_devices(device_type):
        count += len(tf.config.get_logical_device_configuration(physical) or [None])
    return [f"{device_type}:{index}" for index in range(count)]


def _configure_logical_cpus(count: int) -> None:
    if len(_logical_devices("CPU")) >= count:
        return
    (cpu,) = tf.config.get_visible_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise ValueError(
            f"{DEVICES_PER_WORKER}={count} needs {count} logical CPU devices, which cannot be "
            "created any more, because TensorFlow has already run an operation. Create the "
            f"strategy first. {see('TFA-204')}"
        ) from error
