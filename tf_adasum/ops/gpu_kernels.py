"""Check whether the kernels for NVIDIA GPUs were built, and fit the driver and the GPUs.

The kernels are compiled for some architectures, such as 80 for compute capability 8.0. The driver
must be for the major CUDA version that compiled the kernels, or for a later one. Code for an
architecture also runs on later GPUs of the same major architecture. The code for the newest
architecture can include a form (PTX) that drivers translate for all later architectures.
"""

import ctypes
import functools
import hashlib
from pathlib import Path
from typing import Any

import tensorflow as tf

NAMES = ("_adasum_cuda.so", "_adasum_kernels.fatbin")


def unsupported_reason(folder: Path, cuda: dict[str, Any]) -> str | None:
    """Return why the kernels cannot be used on the GPUs that TensorFlow uses.

    Args:
        folder: the folder that contains the kernels' files.
        cuda: the entry about the kernels in `_build_info.json`.

    Returns:
        The reason; None if the kernels can be used, or if their files exist and no GPU is used.
    """
    if "not_built" in cuda:
        return f"its kernels for GPUs were not built ({cuda['not_built']})"
    for name in NAMES:
        if not (folder / name).exists():
            return f"its kernels for GPUs are missing: {folder / name} does not exist"
    found = gpus()
    if not found:  # nothing will load the kernels
        return None
    for name in NAMES:
        path, sha256 = folder / name, cuda.get("sha256", {}).get(name)
        if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            return f"its kernels for GPUs are damaged: {path} is not the file that was built"
    return why_not_the_driver(cuda, driver_cuda()) or why_not_the_gpus(cuda, found)


def why_not_the_driver(cuda: dict[str, Any], driver: tuple[int, int] | None) -> str | None:
    """Return why the driver is too old for the CUDA version that compiled the kernels, or None."""
    built = cuda.get("cuda")
    if built is None or driver is None or driver[0] >= int(built.partition(".")[0]):
        return None
    return (
        f"its kernels for GPUs need a driver for CUDA {built}, and this driver is for CUDA "
        f"{driver[0]}.{driver[1]}: install a later driver, or build the kernels on this machine"
    )


def why_not_the_gpus(cuda: dict[str, Any], capabilities: list[int]) -> str | None:
    """Return which GPU has an architecture that the kernels do not support, or None."""
    built = cuda.get("architectures")
    if not built:
        return None
    for own in capabilities:
        has_code = any(own // 10 == each // 10 and own >= each for each in built)
        is_translated = cuda.get("translated", False) and own > built[-1]
        if not has_code and not is_translated:
            return (
                f"its kernels for GPUs are for compute capabilities {', '.join(map(str, built))}, "
                f"and a GPU here has {own}"
            )
    return None


@functools.cache
def gpus() -> list[int]:
    """Return the compute capabilities of the GPUs that TensorFlow uses, such as 80 for 8.0."""
    details = tf.config.experimental.get_device_details
    found = (
        details(gpu).get("compute_capability") for gpu in tf.config.list_physical_devices("GPU")
    )
    return [10 * each[0] + each[1] for each in found if each is not None]


def driver_cuda() -> tuple[int, int] | None:
    """Return the version of CUDA that the driver reports, or None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10
