"""Finds the process that uses a port, and holds ports for servers that start later.

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

    The socket is bound to all interfaces and never listens. The system does not assign its port to
    a program that needs any free port, and refuses the port to a program that does not set
    SO_REUSEADDR. The rendezvous and TensorFlow's server (2.15 and 2.21) set SO_REUSEADDR, and
    TensorFlow's server does not set SO_REUSEPORT. So the rendezvous and then TensorFlow's server
    can listen on the port without delay. While one of them listens, no other program can listen on
    the port.

    Args:
        port: the port; 0 lets the system choose a port.
        shared: whether another process may also hold the port. Defaults to False.

    Raises:
        OSError: if the port is in use.
    """
    held = addresses.bound("", port, reuse=shared)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


@functools.cache
def can_be_held() -> bool:
    """Return whether a server may use a held port. Linux allows it; BSD and gVisor do not."""
    with contextlib.suppress(OSError), hold(0) as held:
        addresses.bound("", held.getsockname()[1], reuse=True).close()
        return True
    return False


def user_of(port: int) -> str | None:
    """Return which process uses a TCP port of this machine, as far as /proc shows it.

    Returns:
        The name and pid of a process, such as "python (pid 42)"; "this process"; "a process of user
        alice" if the process belongs to another user; None if /proc shows no process. A socket that
        is bound, but neither listens nor is connected, is not in /proc's tables.
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
    """Return inode and owner's id of each socket at a port, listening sockets first."""
    found = []
    for table in _TABLES:
        with contextlib.suppress(OSError), open(table) as lines:
            for fields in map(str.split, list(lines)[1:]):
                address, state, owner, inode = fields[1], fields[3], fields[7], fields[9]
                # A socket without an inode belongs to no process any more.
                if int(address.rpartition(":")[2], 16) == port and inode != "0":
                    found.append((state != _LISTENS, inode, owner))
    return [(inode, owner) for _, inode, owner in sorted(found)]


def _process_with(inode):
    """Return the pid of a process that has a socket open; None if no such process is visible."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended, or is another user's
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
