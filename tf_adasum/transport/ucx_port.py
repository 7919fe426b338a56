"""Protects the port on which UCX listens in this process.

UCX accepts every connection, trusts every message, and aborts the process if a message makes no
sense. UCX has no setting against this. So the kernel drops packets that open a connection: at first
all such packets, later the packets that do not come from a worker's address. After the workers have
connected, the port is closed. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

from tf_adasum.cluster import addresses, own_address
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health import reachability

SocketAddress = tuple[str, int]  # an IP address and a port

# The largest number of addresses from which a worker connects, and their size in bytes.
SOURCES, BYTES_OF_SOURCES = 4, 64

_SO_ATTACH_FILTER = 26
# Instructions of a classic BPF program, <linux/filter.h>. Offsets count from the TCP header, or
# from the IP header if they start at _NETWORK.
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
_NETWORK, _FLAGS, _SYN, _ACK = 0xFFF00000, 13, 0x02, 0x10
_OFFSET_OF_SOURCE = {4: 12, 6: 8}
_KEEP, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)
_MOST_INSTRUCTIONS = 2000  # limit of the kernel's default memory for socket options


@dataclasses.dataclass(frozen=True)
class Listener:
    """A socket on which UCX listens.

    Attributes:
        descriptor: the file descriptor of the socket.
        inode: the inode of the socket. If UCX closes the socket, the descriptor gets another inode.
        endpoint: the `SocketAddress` of the socket.
    """

    descriptor: int
    inode: int
    endpoint: SocketAddress


class UcxPort:
    """The sockets on which one mesh listens: one for each interface, none without TCP.

    No process can connect to the sockets before `admit`.

    Args:
        before: the result of `listening` before the mesh was created.
        address: the address of the mesh, which contains the ports.
    """

    def __init__(self, before: set[Listener], address: bytes):
        self._listeners = [
            each
            for each in sorted(listening() - before, key=lambda each: each.descriptor)
            if struct.pack("!H", each.endpoint[1]) in address
        ]
        self._filter([])

    @property
    def endpoints(self) -> list[SocketAddress]:
        """The `SocketAddress` of each socket."""
        return [each.endpoint for each in self._listeners]

    def admit(self, hosts: Iterable[str]) -> None:
        """Allow connections from these IP addresses only."""
        self._filter(sorted(set(hosts)))

    def close(self) -> None:
        """Close the sockets that UCX has not closed; the connections stay open.

        UCX keeps the descriptors but does not use them any more.
        """
        for each in self._listeners:
            with contextlib.suppress(OSError), socket.socket() as silent:
                if os.fstat(each.descriptor).st_ino == each.inode:
                    os.dup2(silent.fileno(), each.descriptor, inheritable=False)

    def _filter(self, hosts):
        for each in self._listeners:
            # In some sandboxes filters are not permitted. Then any process can connect.
            with contextlib.suppress(OSError), _as_socket(each.descriptor) as listener:
                program = _program(hosts, 6 if listener.family == socket.AF_INET6 else 4)
                instructions = ctypes.create_string_buffer(
                    b"".join(struct.pack("HBBI", *each) for each in program)
                )
                header = struct.pack("HP", len(program), ctypes.addressof(instructions))
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)


def listening() -> set[Listener]:
    """Return the TCP sockets on which this process listens."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _as_socket(int(name)) as each:
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and _is_ip(each):
                endpoint = own_address.of_end(each.getsockname()), each.getsockname()[1]
                found.add(Listener(int(name), os.fstat(int(name)).st_ino, endpoint))
    return found


def connected(endpoints: Mapping[int, Sequence[SocketAddress]]) -> dict[int, SocketAddress]:
    """Return, for each rank to which this process is connected, the `SocketAddress` of that rank.

    Args:
        endpoints: dict from each rank to every `SocketAddress` on which that rank listens.
    """
    peers = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _as_socket(int(name)) as each:
            if _is_ip(each):
                peers.add((own_address.of_end(each.getpeername()), each.getpeername()[1]))
    return {rank: each for rank, of_rank in endpoints.items() for each in of_rank if each in peers}


def sources(endpoints: Mapping[int, Sequence[SocketAddress]]) -> bytes:
    """Return the addresses from which this process connects: 16 bytes each, padded to 64 bytes."""
    found = set()
    for host in {host for of_rank in endpoints.values() for host, _ in of_rank}:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # nothing is sent
            found.add(own_address.of_end(probe.getsockname()))
    packed = [_packed(each) for each in sorted(found)[:SOURCES]]
    return b"".join(packed).ljust(BYTES_OF_SOURCES, b"\0")


def hosts_in(packed: bytes) -> list[str]:
    """Return the addresses in a result of `sources`."""
    parts = [packed[start : start + 16] for start in range(0, len(packed), 16)]
    addresses = [ipaddress.IPv6Address(part) for part in parts if any(part)]
    return [str(each.ipv4_mapped or each) for each in addresses]


def unreachable(cluster: Cluster, endpoints: Mapping[int, Sequence[SocketAddress]]) -> str:
    """Return a worker that this worker cannot connect to, and its address; "" if there is none.

    UCX itself would wait for minutes.

    Args:
        cluster: the `Cluster`.
        endpoints: dict from the rank of each other worker to every `SocketAddress` on which that
            worker listens. At least one of each worker has to be reached.
    """
    tried = [(rank, endpoint) for rank, of_rank in endpoints.items() for endpoint in of_rank]
    words = reachability.connect_errors([endpoint for _, endpoint in tried])
    silent: dict[int, str] = {}
    reached = {rank for (rank, _), word in zip(tried, words, strict=True) if not word}
    for (rank, endpoint), word in zip(tried, words, strict=True):
        if rank not in reached:
            silent.setdefault(rank, f"at {addresses.joined(*endpoint)}: {word}")
    if not silent:
        return ""
    rank, where = next(iter(silent.items()))
    more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
    return f"UCX cannot reach {cluster.named([rank])} {where}{more}"


def _as_socket(descriptor):
    """Return a new socket object for an open descriptor; it can be closed separately."""
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _is_ip(each):
    return each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM


def _packed(host):
    address = ipaddress.ip_address(host)
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


def _program(hosts, version):
    """Return a program that keeps packets unless they open a connection from another host."""
    begin = [(_LOAD_BYTE, 0, 0, _FLAGS), (_AND, 0, 0, _SYN | _ACK)]
    begin += [(_JUMP_IF_EQUAL, 1, 0, _SYN), _KEEP]
    program = list(begin)
    for host in hosts:
        address = ipaddress.ip_address(host)
        if address.version != version:
            continue
        words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
        for number, word in enumerate(words):
            left = 2 * (len(words) - number) - 1  # instructions to the end of this address
            offset = _NETWORK + _OFFSET_OF_SOURCE[version] + 4 * number
            program += [(_LOAD_WORD, 0, 0, offset), (_JUMP_IF_EQUAL, 0, left, word)]
        program.append(_KEEP)
    return [*program, _DROP] if len(program) < _MOST_INSTRUCTIONS else [_KEEP]
