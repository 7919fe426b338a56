"""The workers that have joined, as their keys describe them, and the addresses that they get.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import Any

from tf_adasum.cluster import addresses, own_address
from tf_adasum.cluster.json_lines import printable

LONGEST_JOB = 200  # characters of a job's name
_HOST = re.compile(r"[\w.:%-]{1,255}")  # a name, or an address such as "fe80::1%eth0"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a worker is that does not know the other workers' addresses.

    Attributes:
        host: the worker's host, as the worker sends it.
        port: the worker's port.
        is_given: whether the user has set the worker's host.
        coordinator: the host in the address at which the worker has called worker 0.
        is_local: whether the worker is on worker 0's machine.
        end: the host of worker 0 in the connection.
        job: the name of the worker's job; "" if it is not known.
    """

    host: str
    port: int
    is_given: bool
    coordinator: str
    is_local: bool
    end: str
    job: str

    @classmethod
    def parsed(cls, found: dict[str, Any], ends: tuple[str, str]) -> Place:
        """Return the `Place` in the value of a key, see `Member.parsed`."""
        host, port, coordinator = (found.get(name) for name in ("host", "port", "coordinator"))
        if not isinstance(host, str) or type(port) is not int or not isinstance(coordinator, str):
            raise ValueError("not a place")
        for each in (host, coordinator):
            if not _HOST.fullmatch(each):
                raise ValueError("not a place")
            addresses.split(addresses.joined(each, port))
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)  # "::ffff:0.0.0.0"
        if (mapped or address).is_unspecified:
            raise ValueError("not a place")
        end, peer = ends
        is_given = found.get("is_given") is True
        is_local = own_address.is_loopback(peer) or peer == end
        is_local = is_local and (is_given or host == peer)
        job = printable(found.get("job"), LONGEST_JOB)
        return cls(host, port, is_given, coordinator, is_local, end, job)


@dataclasses.dataclass(frozen=True)
class Member:
    """A worker, as its key describes it.

    Attributes:
        host: the IP address of the worker in its connection.
        cluster: what the worker knows about the cluster, which must match on all workers.
        settings: the other settings that must match; None until the worker has all addresses.
        place: the `Place`; None if the worker was started with all addresses.
    """

    host: str
    cluster: dict[str, Any]
    settings: dict[str, Any] | None
    place: Place | None

    @property
    def at(self) -> str:
        """The address of the worker; its host if only this is known."""
        return addresses.joined(self.place.host, self.place.port) if self.place else self.host

    @classmethod
    def parsed(cls, found: dict[str, Any], ends: tuple[str, str], has_place: bool) -> Member:
        """Return the `Member` in the value of a key; raise a ValueError if the value is not valid.

        Args:
            found: the value, which a client has sent.
            ends: the IP addresses of worker 0 and of the client in the client's connection.
            has_place: whether the value has to contain a `Place`.
        """
        cluster, settings = found.get("cluster"), found.get("settings")
        if not isinstance(cluster, dict) or not isinstance(settings, dict | None):
            raise ValueError("not a member")
        place = Place.parsed(found, ends) if has_place else None
        return cls(ends[1], cluster, settings, place)


def all_addresses(own_host: str, own_port: int, places: dict[int, Place]) -> tuple[str, ...]:
    """Return the addresses of all workers, by which the workers reach each other.

    A worker on worker 0's machine gets worker 0's host, unless the user has set its host.

    Args:
        own_host: the host that the user has set for worker 0, or "".
        own_port: the port of worker 0.
        places: dict from the ranks of all other workers to their `Place`s.
    """
    remote = [each for _, each in sorted(places.items()) if not each.is_local]
    own = own_host
    if not own:
        called = {each.coordinator for each in remote or places.values()}
        own = called.pop() if len(called) == 1 else ""
        is_elsewhere = not own or own in ("0.0.0.0", "::") or own_address.is_loopback(own)
        if is_elsewhere and remote:
            own = remote[0].end
        elif not own or own in ("0.0.0.0", "::"):
            own = next(iter(places.values())).end
    found = {0: addresses.joined(own, own_port)}
    for rank, each in places.items():
        is_at_own = each.is_local and not each.is_given
        found[rank] = addresses.joined(own if is_at_own else each.host, each.port)
    return tuple(found[rank] for rank in range(len(found)))
