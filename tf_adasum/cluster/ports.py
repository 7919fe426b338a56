"""Finds free ports, holds them for servers that start later, and listens on them.

Standard library only.
"""

import contextlib
import errno
import functools
import socket
import time
from collections.abc import Iterator

from tf_adasum.cluster import addresses
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import POLL_SECONDS
from tf_adasum.errors import see

_BACKLOG = 1024  # callers that wait in the kernel

_SECONDS_FOR_A_SERVER = 15.0
# A gRPC server begins each HTTP/2 connection with a SETTINGS frame. Byte 3 of a frame is its type.
_SETTINGS = b"\x04"


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


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Yield distinct free ports, which are held until the block ends.

    In the block, only a server that sets SO_REUSEADDR can use a held port, see `hold`. So another
    launcher cannot get the port. If the system cannot hold ports, the ports are not held in the
    block.

    Args:
        count: the number of ports.

    Raises:
        OSError: if there are no free ports.
    """
    with contextlib.ExitStack() as sockets:
        found = [sockets.enter_context(hold(0)).getsockname()[1] for _ in range(count)]
        if not can_be_held():
            sockets.close()
        yield found


def listening_socket(cluster: Cluster) -> socket.socket:
    """Return a socket that listens on this task's port.

    Raises:
        OSError: if the task cannot listen. The message names the task.
    """
    host, port = cluster.host_and_port(cluster.rank)
    name = cluster.named([cluster.rank])
    try:
        return addresses.bound(host, port, reuse=True, backlog=_BACKLOG)
    except OSError as error:
        text = f"{name} cannot listen on its port: {error}"
        if error.errno == errno.EADDRINUSE:
            text = (
                f"the port of {name} is in use by another process, perhaps of another job, or "
                "the same task started twice. Give the task another port, or end that process "
                f"(ss -ltnp 'sport = :{port}' shows its pid)"
            )
        raise OSError(error.errno, f"{text} {see('TFA-205')}") from error


def is_in_use(address: str) -> bool:
    """Return whether a program accepts connections at an address, "host:port"."""
    with contextlib.suppress(OSError, ValueError):
        socket.create_connection(addresses.split(address), timeout=1).close()
        return True
    return False


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
                begun = connection.recv(4, socket.MSG_WAITALL)
        except OSError:
            begun = b""
        if begun[3:] == _SETTINGS:
            return
        time.sleep(POLL_SECONDS)
