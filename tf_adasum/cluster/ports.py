"""Finds free ports, holds them for servers that start later, and listens on them.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pwd
import secrets
import socket
import time
from collections.abc import Iterator

from tf_adasum.cluster import addresses
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import POLL_SECONDS
from tf_adasum.errors import see

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"  # <net/tcp_states.h>

_SETTINGS = "/proc/sys/net/ipv4"
# Well-known programs, which may start later, use lower ports.
_LOWEST = 10_000
_HIGHEST = 65_535
# The range of ephemeral ports that is used if it cannot be read: from Linux's default for the first
# port to IANA's last port.
_USUAL_RANGE = (32_768, _HIGHEST)

_BACKLOG = 1024  # callers that wait in the kernel

_SECONDS_FOR_A_SERVER = 15.0
# A gRPC server begins each HTTP/2 connection with a SETTINGS frame. Byte 3 of a frame is its type.
_FRAME_TYPE_INDEX, _SETTINGS_FRAME = 3, 0x04


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


def candidates(settings: str = _SETTINGS) -> Iterator[int]:
    """Yield, without end, ports that the system does not assign automatically.

    The ports above ``ip_local_port_range`` come first, because no program is registered for them.
    Then come the ports below this range. Each of these two sequences starts at a random port. Ports
    in ``ip_local_reserved_ports`` are left out. When no ports are left, the function yields 0
    forever, for which the system chooses a port.

    Args:
        settings: the folder with the files ``ip_local_port_range`` and ``ip_local_reserved_ports``.
            Defaults to Linux's folder.
    """
    first, last = _ephemeral_range(settings)
    reserved = _reserved(settings)
    for block in (range(last + 1, _HIGHEST + 1), range(_LOWEST, first)):
        free = [port for port in block if port not in reserved]
        begin = secrets.randbelow(len(free)) if free else 0
        yield from free[begin:] + free[:begin]
    while True:
        yield 0


@contextlib.contextmanager
def free_ports(count: int, ports_to_try: Iterator[int] | None = None) -> Iterator[list[int]]:
    """Yield distinct free ports, which are held until the block ends.

    In the block, only a server that sets SO_REUSEADDR can use a held port, see `hold`. So another
    launcher cannot get the port. If the system cannot hold ports, the ports are not held in the
    block.

    Args:
        count: the number of ports.
        ports_to_try: iterator of ports. `with` blocks that share one iterator get different
            ports. Defaults to `candidates()`.

    Raises:
        OSError: if there are no free ports.
    """
    ports_to_try = ports_to_try or candidates()
    with contextlib.ExitStack() as sockets:
        found: list[int] = []
        while len(found) < count:
            port = next(ports_to_try)
            try:
                holder = sockets.enter_context(hold(port))
            except OSError as error:
                if port == 0 or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            found.append(holder.getsockname()[1])
        if not can_be_held():
            sockets.close()
        yield found


def listening_socket(cluster: Cluster) -> socket.socket:
    """Return a socket that listens on this task's port.

    Raises:
        OSError: if the task cannot listen. The message names the task, and the process that uses
            the port, if any.
    """
    host, port = cluster.host_and_port(cluster.rank)
    listener = None
    try:
        listener = addresses.bound(host, port, reuse=True)
        listener.listen(_BACKLOG)
        listener.setblocking(False)  # a caller may disconnect before it is accepted
    except OSError as error:
        if listener:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(cluster, user_of(port)) from error
        raise OSError(
            error.errno,
            f"{cluster.named([cluster.rank])} cannot listen on its port: {error} {see('TFA-205')}",
        ) from error
    return listener


def port_in_use(cluster: Cluster, user: str | None) -> OSError:
    """Return the error for a port of this task that is in use.

    Args:
        cluster: the `Cluster`.
        user: the process that uses the port, as `user_of` returns it; None if not known.
    """
    return OSError(
        errno.EADDRINUSE,
        f"the port of {cluster.named([cluster.rank])} is in use by {user or 'another process'}. "
        f"End that process or give the task another port {see('TFA-205')}",
    )


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


def _sockets_at(port: int) -> list[tuple[str, str]]:
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


def _process_with(inode: str) -> int | None:
    """Return the pid of a process that has a socket open; None if no such process is visible."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended, or is another user's
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path) == f"socket:[{inode}]":
                        return pid
    return None


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as name:
            return name.read().strip()
    except OSError:
        return "a process"


def _ephemeral_range(settings: str) -> tuple[int, int]:
    """Return the first and the last ephemeral port."""
    try:
        with open(f"{settings}/ip_local_port_range") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return first, last


def _reserved(settings: str) -> set[int]:
    """Return the ports reserved for certain programs; the file looks like "8080,9148-9150"."""
    reserved: set[int] = set()
    with contextlib.suppress(OSError, ValueError), open(f"{settings}/ip_local_reserved_ports") as f:
        for part in f.read().strip().split(","):
            first, _, last = part.partition("-")
            reserved.update(range(int(first), int(last or first) + 1))
    return reserved


def wait_for_server(address: str, timeout: float = _SECONDS_FOR_A_SERVER) -> None:
    """Wait until TensorFlow's server listens at an address; return after the timeout in any case.

    The other tasks register with worker 0's server, which uses the port of the rendezvous. If a
    task registers while the server starts, it may wait for an answer that never comes (observed
    with TensorFlow 2.15, once in three starts of four workers on a busy machine).

    Args:
        address: "host:port" of worker 0.
        timeout: seconds. Defaults to 15.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(addresses.split(address), timeout=1) as connection:
                begun = connection.recv(_FRAME_TYPE_INDEX + 1, socket.MSG_WAITALL)
        except OSError:
            begun = b""
        if len(begun) > _FRAME_TYPE_INDEX and begun[_FRAME_TYPE_INDEX] == _SETTINGS_FRAME:
            return
        time.sleep(POLL_SECONDS)
