"""Finds the port on which UCX listens in this process, and closes it after the start.

UCX accepts every connection, trusts every message, and aborts the process if a message makes no
sense. UCX has no setting against this, so the port is closed as soon as the workers have connected.
TensorFlow's own port stays open, and runs any graph for anybody, so the workers need a private
network. Standard library only.
"""

import contextlib
import itertools
import os
import socket
import stat
import struct
import typing
from collections.abc import Iterator, Mapping, Sequence

from tf_adasum.cluster import addresses, own_address
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health import reachability

SocketAddress = tuple[str, int]  # an IP address and a port


class Listener(typing.NamedTuple):
    """A socket on which UCX listens.

    Attributes:
        descriptor: the file descriptor of the socket.
        inode: the inode of the socket. If UCX closes the socket, the descriptor gets another inode.
        endpoint: the `SocketAddress` of the socket.
    """

    descriptor: int
    inode: int
    endpoint: SocketAddress


def of_mesh(before: set[Listener], address: bytes) -> list[Listener]:
    """Return the sockets on which one mesh listens: one for each interface, none without TCP.

    Args:
        before: the result of `listening` before the mesh was created.
        address: the address of the mesh, which contains the ports.
    """
    return [
        each
        for each in sorted(listening() - before, key=lambda each: each.descriptor)
        # UCX listens at an interface; a listener of another thread is mostly at no address.
        if each.endpoint[0] not in ("0.0.0.0", "::")
        and struct.pack("!H", each.endpoint[1]) in address
    ]


def close(listeners: Sequence[Listener]) -> None:
    """Close the sockets that UCX has not closed; the connections stay open.

    UCX keeps the descriptors but does not use them any more.
    """
    for each in listeners:
        with contextlib.suppress(OSError), socket.socket() as silent:
            if os.fstat(each.descriptor).st_ino == each.inode:
                os.dup2(silent.fileno(), each.descriptor, inheritable=False)


def listening() -> set[Listener]:
    """Return the TCP sockets on which this process listens."""
    found = set()
    for descriptor, each in _tcp_sockets():
        if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            endpoint = own_address.of_end(each.getsockname()), each.getsockname()[1]
            found.add(Listener(descriptor, os.fstat(descriptor).st_ino, endpoint))
    return found


def connected(endpoints: Mapping[int, Sequence[SocketAddress]]) -> dict[int, SocketAddress]:
    """Return, for each rank to which this process is connected, the `SocketAddress` of that rank.

    Args:
        endpoints: dict from each rank to every `SocketAddress` on which that rank listens.
    """
    peers = set()
    for _, each in _tcp_sockets():
        with contextlib.suppress(OSError):  # it is not connected
            peers.add((own_address.of_end(each.getpeername()), each.getpeername()[1]))
    return {rank: each for rank, of_rank in endpoints.items() for each in of_rank if each in peers}


def unreachable(cluster: Cluster, endpoints: Mapping[int, Sequence[SocketAddress]]) -> str:
    """Return a worker that this worker cannot connect to, and its address; "" if there is none.

    UCX itself would wait for minutes.

    Args:
        cluster: the `Cluster`.
        endpoints: dict from the rank of each other worker to every `SocketAddress` on which that
            worker listens. At least one of each worker has to be reached.
    """
    silent, words = [], iter(reachability.connect_errors([*itertools.chain(*endpoints.values())]))
    for rank, of_rank in endpoints.items():
        tried = [(endpoint, next(words)) for endpoint in of_rank]
        if tried and all(word for _, word in tried):
            endpoint, word = tried[0]
            silent.append(f"{cluster.named([rank])} at {addresses.joined(*endpoint)}: {word}")
    more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
    return f"UCX cannot reach {silent[0]}{more}" if silent else ""


def _tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield the TCP sockets of this process: each descriptor, and a copy that is closed next."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as each:
                is_ip = each.family in (socket.AF_INET, socket.AF_INET6)
                if is_ip and each.type == socket.SOCK_STREAM:
                    yield descriptor, each
