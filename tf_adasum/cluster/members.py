"""The workers that have joined, as their keys describe them, and the addresses that they get.

Standard library only.
"""

import dataclasses
import ipaddress
import re
from typing import Any

from tf_adasum.cluster import addresses, own_address
from tf_adasum.cluster.messages import printable

LONGEST_JOB = 200  # characters of a job's name
_HOST = re.compile(r"[\w.:%-]{1,255}")  # a name, or an address such as "fe80::1%eth0"


@dataclasses.dataclass(frozen=True)
class Member:
    """A worker, as its key describes it.

    Attributes:
        ends: the IP addresses of worker 0 and of this worker in its connection.
        cluster: what the worker knows about the cluster, which must match on all workers.
        settings: the other settings that must match; None until the worker has all addresses.
        port: the worker's port; 0, as in the defaults below, if it knows all addresses.
        host: the worker's host, as the worker sends it.
        coordinator: the host in the address at which the worker has called worker 0.
        is_given: whether the user has set the worker's host.
        job: the name of the worker's job; "" if it is not known.
    """

    ends: tuple[str, str]
    cluster: dict[str, Any]
    settings: dict[str, Any] | None
    port: int = 0
    host: str = ""
    coordinator: str = ""
    is_given: bool = False
    job: str = ""

    @property
    def at(self) -> str:
        """The address of the worker; its host if only this is known."""
        return addresses.joined(self.host, self.port) if self.port else self.ends[1]

    @property
    def is_local(self) -> bool:
        """Whether the worker is on worker 0's machine."""
        end, peer = self.ends
        is_here = own_address.is_loopback(peer) or peer == end
        return is_here and (self.is_given or self.host == peer)

    @classmethod
    def parsed(cls, found: dict[str, Any], ends: tuple[str, str], has_place: bool) -> "Member":
        """Return the `Member` in the value of a key.

        Args:
            found: the value, which a client has sent.
            ends: the IP addresses of worker 0 and of the client in the client's connection.
            has_place: whether the value has to contain the worker's port and host.

        Raises:
            TypeError, ValueError: if the value is not valid.
        """
        cluster, settings = found.get("cluster"), found.get("settings")
        if not isinstance(cluster, dict) or not isinstance(settings, dict | None):
            raise ValueError("not a member")
        if not has_place:
            return cls(ends, cluster, settings)
        names = "host", "port", "coordinator"
        host, port, coordinator = (found.get(name) for name in names)  # type: Any, Any, Any
        are_hosts = _HOST.fullmatch(host) and _HOST.fullmatch(coordinator)
        if type(port) is not int or not 0 < port < 65536 or not are_hosts:
            raise ValueError("not a place")
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)  # "::ffff:0.0.0.0"
        if (mapped or address).is_unspecified:
            raise ValueError("not a place")
        is_given, job = found.get("is_given") is True, printable(found.get("job"), LONGEST_JOB)
        return cls(ends, cluster, settings, port, host, coordinator, is_given, job)


def all_addresses(own_host: str, own_port: int, members: dict[int, Member]) -> tuple[str, ...]:
    """Return the addresses of all workers, by which the workers reach each other.

    A worker on worker 0's machine gets worker 0's host, unless the user has set its host.

    Args:
        own_host: the host that the user has set for worker 0, or "".
        own_port: the port of worker 0.
        members: dict from the ranks of all other workers to their `Member`s.
    """
    remote = [each for _, each in sorted(members.items()) if not each.is_local]
    own = own_host
    if not own:
        called = {each.coordinator for each in remote or members.values()}
        own = called.pop() if len(called) == 1 else ""
        is_elsewhere = not own or own in ("0.0.0.0", "::") or own_address.is_loopback(own)
        if is_elsewhere and remote:
            own = remote[0].ends[0]
        elif not own or own in ("0.0.0.0", "::"):
            own = next(iter(members.values())).ends[0]
    found = {0: addresses.joined(own, own_port)}
    for rank, each in members.items():
        is_at_own = each.is_local and not each.is_given
        found[rank] = addresses.joined(own if is_at_own else each.host, each.port)
    return tuple(found[rank] for rank in range(len(found)))
