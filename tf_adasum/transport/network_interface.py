"""Finds the network interface for UCX: the interface that has this worker's cluster address.

By default, UCX listens on all interfaces, and may use an interface that the other workers cannot
reach. Standard library only.
"""

import contextlib
import socket

from tf_adasum.cluster import own_address
from tf_adasum.cluster.tasks import Cluster

_ANY_PORT = 9  # nothing is sent to it


def interface_for(cluster: Cluster) -> str:
    """Return the name of the interface on which UCX listens, such as "eth0" or "lo".

    Raises:
        RuntimeError: if no interface of this machine has this worker's address or a route to the
            other workers.
    """
    hosts = cluster.hosts
    own, others = hosts[cluster.rank], sorted(set(hosts) - {hosts[cluster.rank]})
    found = [name for address in _addresses(own) if (name := own_address.interface_with(address))]
    # On the host itself, its name may resolve to the loopback address, as on Debian.
    reached = [name for name in found if not others or name != own_address.LOOPBACK]
    if not reached:  # behind address translation: the interface towards the others
        ends = [address for host in others for address in _from(host)]
        reached = list(filter(None, map(own_address.interface_with, ends)))
    if not reached:
        raise RuntimeError(
            f"no network interface of this machine has the address {own} or a route to the other "
            "workers"
        )
    return reached[0]


def _addresses(host: str) -> list[str]:
    """Return the IP addresses of a host, IPv4 first; an empty list if its name is unknown."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        return [str(end[0]) for _, _, _, _, end in sorted(found, key=lambda each: each[0])]
    return []


def _from(host: str) -> list[str]:
    """Return the addresses of this machine from which packets to a host would be sent."""
    found = []
    for address in _addresses(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _ANY_PORT))
            found.append(own_address.of_end(probe.getsockname()))
    return found
