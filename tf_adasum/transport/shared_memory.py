"""Checks which workers share memory, and whether /dev/shm is large enough for UCX.

UCX wakes the process at the other end of shared memory through an abstract Unix socket, which
belongs to a network namespace. UCX does not check this: in two containers that share /dev/shm, each
message takes up to a second. If /dev/shm is almost full, UCX crashes when it is opened.
Standard library only.
"""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from tf_adasum.cluster.tasks import Cluster

FOLDER = "/dev/shm"
TRANSPORTS = "posix,cma,tcp,self"  # for UCX: with single copies between processes, else TCP
MIB = 2**20

# UCX 1.22 does not use shared memory if less than 16 MiB are free, crashes if it is not much more,
# and needs 4.2 MiB for each worker.
_MIB_FREE, _MIB_OF_A_WORKER = 16, 5
_WITH_SHARED_MEMORY = {"all", "posix", "mm", "shm", "sm"}  # in UCX_TLS


def place() -> tuple[int, int, int]:
    """Return three numbers that describe the shared memory of this process.

    Returns:
        A number of its /dev/shm, the same for the processes that share it; the number of its
        network namespace; and the MiB that are free in /dev/shm.
    """
    memory, network, free = 0, 0, 0
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        network = os.stat("/proc/self/ns/net").st_ino
        memory = zlib.crc32(f"{boot} {os.stat(FOLDER).st_dev}".encode())
        space = os.statvfs(FOLDER)
        free = space.f_bavail * space.f_frsize // MIB
    except OSError:  # without /dev/shm, or /proc: UCX has no shared memory either
        pass
    return memory, network, free


def is_shared(memories: Sequence[int]) -> bool:
    """Whether any workers share memory."""
    return len(set(memories)) < len(memories)


def divided(cluster: Cluster, memories: Sequence[int], networks: Sequence[int]) -> str:
    """Return which workers share memory, but no network namespace; "" if none.

    Args:
        cluster: the `Cluster`.
        memories: the first number of `place` of each worker.
        networks: the second number of each.
    """
    first: dict[int, int] = {}
    for rank, (memory, network) in enumerate(zip(memories, networks, strict=True)):
        other = first.setdefault(memory, rank)
        if networks[other] != network:
            return (
                f"{cluster.named([other, rank])} share {FOLDER}, but not a network namespace, so "
                "UCX cannot wake up one from the other"
            )
    return ""


def lacking(cluster: Cluster, memories: Sequence[int], free: Sequence[int]) -> str:
    """Return a worker with too small a /dev/shm, and the missing space; "" if all are large enough.

    Args:
        cluster: the `Cluster`.
        memories: the first number of `place` of each worker.
        free: the third number of each.
    """
    workers = collections.Counter(memories)
    for rank, (memory, mib) in enumerate(zip(memories, free, strict=True)):
        if why := too_small(mib, workers[memory]):
            return f"{cluster.named([rank])}: {why}"
    return ""


def danger(transports: str, cluster: Cluster, memories: Sequence[int], free: Sequence[int]) -> str:
    """Return why UCX may crash on some worker with the user's ``UCX_TLS``; "" if it will not.

    Args:
        transports: the variable on this worker.
        cluster, memories, free: as for `lacking`.
    """
    names = {name.strip(" ^") for name in transports.split(",")}
    is_used = transports.startswith("^") or bool(names & _WITH_SHARED_MEMORY)
    if not is_used or not is_shared(memories) or max(free) < _MIB_FREE:
        return ""
    return lacking(cluster, memories, free)


def too_small(free: int, workers: int) -> str:
    """Return why UCX cannot use /dev/shm for some workers; "" if it can.

    Args:
        free: MiB.
        workers: the number of workers that share it.
    """
    needed = _MIB_FREE + _MIB_OF_A_WORKER * workers
    if free >= needed:
        return ""
    return f"{FOLDER} has {free} MiB free, and {workers} workers need {needed} MiB"
