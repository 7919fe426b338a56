"""The CPUs of each worker. Uses only the standard library."""

import contextlib
import itertools
import os
import pathlib
from collections.abc import Collection

BIND_TO = ("cores", "none")  # values of --bind-to

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
_PLACE_FILES = ("physical_package_id", "core_id")


def cpu_shares(num_workers: int, cpus: Collection[int] | None = None) -> list[set[int]]:
    """Divide the CPUs on which this process may run among the workers of this machine.

    If workers run on the same CPUs, their threads delay each other: a step of a small model takes
    up to three times as long (docs/speed.md). CPUs of one socket, and the hardware threads of
    one core, go to the same worker where possible. If there are more workers than CPUs, the same
    number of workers shares each CPU.

    Args:
        num_workers: number of workers, at least 1.
        cpus: numbers of the CPUs. Defaults to None: ``os.sched_getaffinity(0)``.

    Returns:
        For each worker a set of CPUs. An empty list if workers should not be bound: for a single
        worker, and if there are more workers than CPUs and the workers cannot be divided evenly.

    Example:
        >>> cpu_shares(2, cpus=range(1000, 1005))  # CPUs without a known socket
        [{1000, 1001}, {1002, 1003, 1004}]
        >>> cpu_shares(4, cpus=[1000, 1001])
        [{1000}, {1000}, {1001}, {1001}]
    """
    if num_workers < 2:
        return []
    cpus = sorted(os.sched_getaffinity(0) if cpus is None else cpus, key=_place)
    count = len(cpus)
    if count < num_workers and num_workers % count:
        return []
    starts = [worker * count // num_workers for worker in range(num_workers + 1)]
    return [set(cpus[i : max(j, i + 1)]) for i, j in itertools.pairwise(starts)]


def bind(cpus: set[int]) -> None:
    """Let this process run on these CPUs only; on all CPUs, if the set is empty."""
    if cpus:
        with contextlib.suppress(OSError):  # they may have been taken offline since the start
            os.sched_setaffinity(0, cpus)


def _place(cpu: int) -> tuple[int, int, int]:
    """Return the socket, the core and the number of a CPU."""
    folder = pathlib.Path(_TOPOLOGY.format(cpu))
    try:
        socket, core = (int((folder / name).read_text()) for name in _PLACE_FILES)
    except (OSError, ValueError):  # a container may hide it
        socket = core = 0
    return socket, core, cpu
