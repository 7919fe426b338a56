"""Worker 0's decision which addresses the workers get. It does no input or output.

The value of a worker's key is a `Member`, and the result contains the addresses of all workers, see
`start_round`. Standard library only.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from tf_adasum.cluster import addresses, own_address
from tf_adasum.cluster.json_lines import printable
from tf_adasum.cluster.start_round import StartRound, different_settings
from tf_adasum.cluster.tasks import RendezvousConfig, listed
from tf_adasum.environment_variables import INTERFACE
from tf_adasum.errors import see

WORKERS = "number of workers"

LONGEST_JOB = 200  # characters of a job's name
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # the interface in "fe80::1%eth0"


@dataclasses.dataclass(frozen=True)
class Member:
    """A worker, as its key describes it.

    Attributes:
        host: the worker's host, as the worker sends it.
        port: the worker's port.
        is_given: whether the user has set the worker's host.
        coordinator: the host in the address at which the worker has called worker 0.
        is_local: whether the worker is on worker 0's machine.
        end: the host of worker 0 in the connection.
        settings: the settings that must match on all workers.
        job: the name of the worker's job; "" if it is not known.
    """

    host: str
    port: int
    is_given: bool
    coordinator: str
    is_local: bool
    end: str
    settings: dict[str, Any]
    job: str

    @property
    def address(self) -> str:
        """The address of the worker, with its port."""
        return addresses.joined(self.host, self.port)

    @classmethod
    def parsed(cls, value: Any, ends: tuple[str, str]) -> Member:
        """Return the `Member` in the value of a key; raise a ValueError if the value is not valid.

        Args:
            value: the value, which a client has sent.
            ends: the IP addresses of worker 0 and of the client in the client's connection.
        """
        found: Any = value if isinstance(value, dict) else {}
        host, port, coordinator, settings = (
            found.get(name) for name in ("host", "port", "coordinator", "settings")
        )
        is_typed = isinstance(host, str) and type(port) is int and isinstance(settings, dict)
        if not is_typed or not isinstance(coordinator, str) or len(coordinator) > 255:
            raise ValueError("not a member")
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)  # "::ffff:0.0.0.0"
        addresses.split(addresses.joined(host, port))
        addresses.split(addresses.joined(coordinator, port))
        _, has_scope, scope = host.partition("%")
        is_name = coordinator.isprintable() and " " not in coordinator
        is_printable = is_name and not (has_scope and not _SCOPE.fullmatch(scope))
        if not is_printable or (mapped or address).is_unspecified:
            raise ValueError("not a member")
        end, peer = ends
        is_given = found.get("is_given") is True
        is_local = own_address.is_loopback(peer) or peer == end
        return cls(
            host,
            port,
            is_given,
            coordinator,
            is_local and (is_given or host == peer),
            end,
            settings,
            printable(found.get("job"), LONGEST_JOB),
        )


class Coordinator(StartRound):
    """Collects the addresses of all workers, and returns them as the result for all workers.

    Args:
        config: worker 0's `RendezvousConfig`.
        run: the random name for this start of worker 0.
        own: the data of worker 0: a dict with the port, the settings, and the host, which is empty
            unless the user has set it.

    Attributes:
        addresses: the addresses of all workers; an empty list until all workers have joined.
    """

    def __init__(self, config: RendezvousConfig, run: str, own: dict[str, Any]):
        super().__init__(config.num_workers, run)
        self.addresses: list[str] = []
        self._config, self._own = config, own

    def _parsed(self, value: Any, ends: tuple[str, str]) -> Member:
        return Member.parsed(value, ends)

    def _address(self, rank: int, member: Member | None) -> str:
        if member is not None:
            return member.address
        return self.addresses[rank] if self.addresses and rank else self._config.coordinator

    def _of_another_job(self, member: Member) -> str:
        own_job = printable(self._config.job, LONGEST_JOB)
        if not own_job or not member.job or member.job == own_job:
            return ""
        return (
            f"Another job's worker 0 answers at {self._config.coordinator}. That worker belongs to "
            f"job {own_job}, but this worker belongs to job {member.job}. Give each job its own "
            f"coordinator. {see('TFA-212')}"
        )

    def _wrong(self, rank: int, member: Member) -> str:
        names = f"worker 0 ({self._config.coordinator})", f"worker {rank} ({member.address})"
        return different_settings(self._own["settings"], member.settings, *names)

    def named(self, ranks: Iterable[int]) -> str:
        """Return the names of some workers, see `StartRound.named`."""
        return listed([f"worker {rank}" for rank in ranks])

    def _news(self) -> dict[str, Any]:
        return {"missing": self.named(self.missing())}

    def _decide(self, members: dict[int, Member], now: float) -> None:
        del now
        if len(members) < self._count - 1:
            return
        found = self._all_addresses(members)
        twice = {address for address in found if found.count(address) > 1}
        if twice:
            ranks = [rank for rank, each in enumerate(found) if each in twice]
            self.end(
                f"Workers {', '.join(map(str, ranks))} have the same address: "
                f"{', '.join(sorted(twice))}. On each of these workers, set "
                f"{INTERFACE} to the address at which the other workers reach "
                f"this worker. {see('TFA-206')}"
            )
            return
        self.addresses = found
        self._succeed({"addresses": found})

    def _all_addresses(self, members: dict[int, Member]) -> list[str]:
        """Return the addresses of all workers, by which the workers reach each other.

        A worker on worker 0's machine gets worker 0's host, unless the user has set its host.
        """
        remote = [each for _, each in sorted(members.items()) if not each.is_local]
        own = self._own["host"]
        if not own:
            called = {each.coordinator for each in remote or members.values()}
            own = called.pop() if len(called) == 1 else ""
            is_elsewhere = not own or own in ("0.0.0.0", "::") or own_address.is_loopback(own)
            if is_elsewhere and remote:
                own = remote[0].end
            elif not own or own in ("0.0.0.0", "::"):
                own = next(iter(members.values())).end
        hosts = {0: addresses.joined(own, self._own["port"])}
        for rank, each in members.items():
            is_at_own = each.is_local and not each.is_given
            hosts[rank] = addresses.joined(own if is_at_own else each.host, each.port)
        return [hosts[rank] for rank in range(self._config.num_workers)]
