"""Checks which workers share memory, and whether /dev/shm is large enough for UCX.

If two processes share memory, UCX in one process wakes the other process through an abstract Unix
socket. This works only within a network namespace, which UCX does not check. So in two containers
that share only /dev/shm, each message takes up to a second. If /dev/shm is almost full, UCX crashes
when it is opened. Standard library only.
"""

import collections
import ctypes
import os
import secrets
import zlib
from collections.abc import Sequence
from pathlib import Path

from tf_adasum.cluster.tasks import Cluster

FOLDER = "/dev/shm"
TRANSPORTS = "posix,cma,tcp,self"  # for UCX: shared memory with single copies, otherwise TCP
MIB = 2**20

# UCX 1.22 does not use shared memory if less than 16 MiB are free, and crashes if only a little
# more is free. It needs 4.2 MiB for each worker.
_MIB_FREE, _MIB_OF_A_WORKER = 16, 5

_LIBC = ctypes.CDLL(None)
_LIBC.process_vm_readv.argtypes = [
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
    *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
]
_MARK = ctypes.c_uint64(secrets.randbits(62) + 1)


def facts() -> tuple[int, int, int]:
    """Return three numbers that describe the shared memory of this process.

    Returns:
        A number for /dev/shm, which is the same in all processes that share /dev/shm; the number of
        the network namespace; and the MiB that are free in /dev/shm.
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


def namespace_conflict(cluster: Cluster, memories: Sequence[int], networks: Sequence[int]) -> str:
    """Return two workers that share memory, but no network namespace; "" if there are none.

    Args:
        cluster: the `Cluster`.
        memories: for each worker, the first number that `facts` returns.
        networks: for each worker, the second number that `facts` returns.
    """
    first: dict[int, int] = {}
    for rank, (memory, network) in enumerate(zip(memories, networks, strict=True)):
        other = first.setdefault(memory, rank)
        if networks[other] != network:
            return (
                f"{cluster.named([other, rank])} share {FOLDER}, but not a network namespace, so "
                "UCX on one worker cannot wake up the other worker"
            )
    return ""


def insufficient_space(cluster: Cluster, memories: Sequence[int], free: Sequence[int]) -> str:
    """Return a worker whose /dev/shm is too small, and why; "" if every /dev/shm is large enough.

    Args:
        cluster: the `Cluster`.
        memories: for each worker, the first number that `facts` returns.
        free: for each worker, the third number that `facts` returns.
    """
    workers = collections.Counter(memories)
    for rank, (memory, mib) in enumerate(zip(memories, free, strict=True)):
        needed = _MIB_FREE + _MIB_OF_A_WORKER * workers[memory]
        if mib < needed:
            return (
                f"{cluster.named([rank])}: {FOLDER} has {mib} MiB free, and {workers[memory]} "
                f"workers need {needed} MiB"
            )
    return ""


def own_mark() -> tuple[int, int, int, int]:
    """Return four numbers with which another worker tests `forbidden_copy`.

    They are the first number of `facts`, the id of this process, and the address and the value of a
    number in the memory of this process.
    """
    return facts()[0], os.getpid(), ctypes.addressof(_MARK), _MARK.value


def forbidden_copy(cluster: Cluster, marks: Sequence[Sequence[int]]) -> str:
    """Return a worker from whose memory this process may not copy; "" if there is none.

    Args:
        cluster: the `Cluster`.
        marks: the `own_mark` of each worker.
    """
    own, *_ = marks[cluster.rank]
    for rank, (memory, process, address, value) in enumerate(marks):
        if memory == own and rank != cluster.rank:
            copy = ctypes.c_uint64()
            here = (ctypes.c_size_t * 2)(ctypes.addressof(copy), 8)  # struct iovec
            there = (ctypes.c_size_t * 2)(address, 8)
            _LIBC.process_vm_readv(process, here, 1, there, 1, 0)
            if copy.value != value:
                return f"it may not copy from the memory of {cluster.named([rank])}"
    return ""
