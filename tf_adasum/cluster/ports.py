"""Ports of this machine: who uses one, and how to hold one for a server that comes later.

Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import socket

from tf_adasum.cluster import addresses

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"  # <net/tcp_states.h>


def hold(port: int, *, shared: bool = False) -> socket.socket:
    """Hold a port for a server that sets SO_REUSEADDR, until the returned socket is closed.

    The socket is bound to all interfaces and never listens. The system gives its port to nobody who
    asks for any free one, and refuses it to whoever asks for this one without SO_REUSEADDR. The
    rendezvous sets it, and so does TensorFlow's server (2.15 and 2.21), which sets no SO_REUSEPORT:
    both may listen there at once, and then nobody else.

    Args:
        port: the port; 0 for one that the system chooses.
        shared: whether another process may hold it, too. Defaults to False: nobody may.

    Raises:
        OSError: if the port is in use.
    """
    held = addresses.bound("", port, reuse=shared)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


@functools.cache
def can_be_held() -> bool:
    """Whether a server may use a port that is held. Linux allows it; BSD and gVisor do not."""
    with contextlib.suppress(OSError), hold(0) as held:
        addresses.bound("", held.getsockname()[1], reuse=True).close()
        return True
    return False


def user_of(port: int) -> str | None:
    """Return who uses a TCP port of this machine, as far as /proc tells.

    Returns:
        Name and pid of a process, such as "python (pid 42)"; "this process"; "a process of user
        alice", if it is another user's; None if nobody is seen: a socket that is bound but neither
        listens nor is connected is not in the tables.
    """
    sockets = _sockets_at(port)
    for inode, _ in sockets:
        pid = _process_with(inode)
        if pid is not None:
            return "this process" if pid == os.getpid() else f"{_name_of(pid)} (pid {pid})"
    for _, owner in sockets:
        with contextlib.suppress(KeyError):
            owner = pwd.getpwuid(int(owner)).pw_name
        return f"a process of user {owner}"
    return None


def _sockets_at(port):
    """Return inode and owner's id of each socket at a port; those that listen come first."""
    found = []
    for table in _TABLES:
        with contextlib.suppress(OSError), open(table) as lines:
            for fields in map(str.split, list(lines)[1:]):
                address, state, owner, inode = fields[1], fields[3], fields[7], fields[9]
                # What has no inode belongs to no process any more.
                if int(address.rpartition(":")[2], 16) == port and inode != "0":
                    found.append((state != _LISTENS, inode, owner))
    return [(inode, owner) for _, inode, owner in sorted(found)]


def _process_with(inode):
    """Return the pid of a process that has a socket open; None if none can be seen."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in pids:
        with contextlib.suppress(OSError):  # ended, or another user's
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path) == f"socket:[{inode}]":
                        return pid
    return None


def _name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as name:
            return name.read().strip()
    except OSError:
        return "a process"
