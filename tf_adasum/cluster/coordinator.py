"""Decides on worker 0 when all workers have joined. No input or output.

Each worker has a session of worker 0's store (`store`), in which it owns a key with its address:

    member/RANK/RUN      set by each worker: see `Member`. RUN is a random name for this start.
    result               the addresses of all workers, or the error with which the start fails
    missing              the names of the workers that have not joined
    refused/RANK/RUN     an error for this worker only

The session of a worker ends with its process, so a restarted worker replaces its old process. Two
live sessions with the same rank are an error. Standard library only.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from tf_adasum.cluster import addresses, own_address
from tf_adasum.cluster.handshake import printable
from tf_adasum.cluster.rendezvous_config import RendezvousConfig
from tf_adasum.cluster.store import LEASE_SECONDS
from tf_adasum.errors import see

WORKERS = "number of workers"

# The session of a process on a lost host ends within `LEASE_SECONDS`.
_SECONDS_OF_DOUBT = LEASE_SECONDS + 1.0
_SECONDS_BETWEEN_UPDATES = 1.0  # of the key `missing`
LONGEST_JOB = 200  # characters of a job's name
_KEY = re.compile(r"member/(-?[0-9]{1,9})/([0-9a-f]{16})")
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
        return joined(self.host, self.port)

    @classmethod
    def parsed(cls, value: Any, ends: tuple[str, str]) -> Member:
        """Return the `Member` in the value of a key; raise a ValueError if the value is not valid.

        Args:
            value: the value, which a client has sent.
            ends: the IP addresses of worker 0 and of the client in the client's connection.
        """
        found = value if isinstance(value, dict) else {}
        host, port, coordinator, settings = (
            found.get(name) for name in ("host", "port", "coordinator", "settings")
        )
        is_typed = isinstance(host, str) and type(port) is int and isinstance(settings, dict)
        if not is_typed or not isinstance(coordinator, str) or len(coordinator) > 255:
            raise ValueError("not a member")
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)  # "::ffff:0.0.0.0"
        addresses.split(joined(host, port))
        addresses.split(joined(coordinator, port))
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


def joined(host: str, port: int) -> str:
    """Return the address "host:port", or "[host]:port" if the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Coordinator:
    """The leader of worker 0's store, see `store.Leader`.

    Args:
        config: worker 0's `RendezvousConfig`.
        run: the random name for this start of worker 0.
        own: the data of worker 0: a dict with the port, the settings, and the host, which is empty
            unless the user has set it.

    Attributes:
        addresses: the addresses of all workers; an empty list until all workers have joined.
        wrong: why the start fails on all workers; "" if it has not failed.
        unauthenticated: for the rank of each client that failed to authenticate, whether the client
            claims to have a secret.
    """

    prefix = "member/"

    def __init__(self, config: RendezvousConfig, run: str, own: dict[str, Any]):
        self.addresses: list[str] = []
        self.wrong = ""
        self.unauthenticated: dict[int, bool] = {}
        self._config, self._run, self._own = config, run, own
        self._members: dict[int, dict[str, Member]] = {}  # from ranks to live runs
        self._runs: dict[int, str] = {}  # of the workers that have joined
        self._doubted_since: dict[int, float] = {}  # ranks with several live runs
        self._unread: set[str] = set()  # keys of live sessions that may not have read the result
        self._reached: set[int] = set()  # ranks that had a live session after the result
        self._changes: dict[str, Any] = {}  # keys that the server has to set
        self._is_late = False
        self._missing = ""
        self._next_update = 0.0

    # ---- for the server --------------------------------------------------------------------------

    def changed(self, key: str, value: Any, ends: tuple[str, str]) -> None:
        """Note that a worker has joined or ended, see `store.Leader`."""
        found = _KEY.fullmatch(key)
        if not found or found[2] == self._run:
            return
        rank, run = int(found[1]), found[2]
        if value is None:
            self._members.get(rank, {}).pop(run, None)
            self._unread.discard(key)
            self._changes[f"refused/{rank}/{run}"] = None
            return
        try:
            member = Member.parsed(value, ends)
        except ValueError:
            return
        own_job = printable(self._config.job, LONGEST_JOB)
        if own_job and member.job and member.job != own_job:
            self._refuse(
                rank,
                run,
                f"Another job's worker 0 answers at {self._config.coordinator}. That worker is of "
                f"job {own_job}, this worker is of job {member.job}. Give each job its own "
                f"coordinator. {see('TFA-212')}",
            )
            return
        self._unread.add(key)
        if self.addresses or self.wrong:
            self._reached.add(rank)
        wrong = self._wrong(rank, member)
        if self.addresses:
            if self._runs.get(rank) != run:
                self._refuse(rank, run, wrong or self._two_of(rank, member, has_joined=True))
        elif wrong:
            self.end(wrong)
        else:
            self.unauthenticated.pop(rank, None)
            self._members.setdefault(rank, {})[run] = member

    def refused(self, rank: int, has_secret: bool) -> None:
        """Note a client without the secret, see `store.Leader`."""
        if 0 < rank < self._config.num_workers and not self._members.get(rank):
            self.unauthenticated[rank] = has_secret

    def decide(self, now: float) -> dict[str, Any]:
        """Return new values of keys, see `store.Leader`."""
        if not self.addresses and not self.wrong:
            self._decide(now)
        if now >= self._next_update:
            missing = ", ".join(listed(self.missing()))
            if missing != self._missing:
                self._next_update = now + _SECONDS_BETWEEN_UPDATES
                self._missing = self._changes["missing"] = missing
        changes, self._changes = self._changes, {}
        return changes

    def _decide(self, now):
        """End the start if two sessions of one rank stay; else note whether all have joined."""
        several = {rank for rank, runs in self._members.items() if len(runs) > 1}
        self._doubted_since = {rank: self._doubted_since.get(rank, now) for rank in several}
        for rank, since in self._doubted_since.items():
            if now > since + _SECONDS_OF_DOUBT:
                self.end(self._two_of(rank, list(self._members[rank].values())[-1]))
                return
        if several or self.missing():
            return
        members = {rank: next(iter(runs.values())) for rank, runs in self._members.items() if runs}
        found = self._all_addresses(members)
        twice = {address for address in found if found.count(address) > 1}
        if twice:
            ranks = [rank for rank, each in enumerate(found) if each in twice]
            self.end(
                f"Workers {', '.join(map(str, ranks))} have the same address: "
                f"{', '.join(sorted(twice))}. On each of these workers, set "
                f"{own_address.INTERFACE} to the address at which the other workers reach "
                f"this worker. {see('TFA-206')}"
            )
            return
        self._runs = {rank: next(iter(self._members[rank])) for rank in members}
        self.addresses = found
        self._publish({"addresses": found})

    # ---- for worker 0 ----------------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Return the ranks of the workers that have not joined."""
        return [rank for rank in range(1, self._config.num_workers) if not self._members.get(rank)]

    def end(self, why: str, *, is_late: bool = False) -> bool:
        """Let the start fail on all workers; return False if its result is already known.

        Args:
            why: the message of the error.
            is_late: whether the error is a timeout. Defaults to `False`.
        """
        if self.addresses or self.wrong:
            return False
        self.wrong, self._is_late = why, is_late
        self._publish({"wrong": why, "is_late": is_late})
        return True

    def error(self) -> Exception:
        """Return the exception with which the start fails."""
        return (TimeoutError if self._is_late else ValueError)(self.wrong)

    def has_informed_all(self) -> bool:
        """Return whether all workers (after a timeout, all that joined) have read the result.

        A worker ends its session when it has read the result.
        """
        needed = range(1, 1 if self._is_late else self._config.num_workers)
        return not self._unread and self._reached.issuperset(needed)

    def _publish(self, result):
        self._changes["result"] = result
        self._reached = {int(key.split("/")[1]) for key in self._unread}

    def _refuse(self, rank, run, why):
        self._changes[f"refused/{rank}/{run}"] = {"wrong": why}

    def _wrong(self, rank, member):
        """Return why the start fails because of a worker; "" if it does not."""
        count = self._config.num_workers
        who = f"worker {rank} ({member.address})"
        for setting, own in self._own["settings"].items():
            if own != member.settings.get(setting):
                return (
                    f"All workers must be started with the same {setting}. Received: "
                    f"{own} on worker 0 ({self._config.coordinator}), "
                    f"{printable(str(member.settings.get(setting)), 100)} on {who} {see('TFA-207')}"
                )
        if not 0 <= rank < count:
            return (
                f"A worker's rank must be from 0 to {count - 1}, because there are {count} "
                f"workers. Received: {who}"
            )
        return self._two_of(0, member) if rank == 0 and not self.addresses else ""

    def _two_of(self, rank, other, *, has_joined=False):
        count = self._config.num_workers
        if has_joined:
            one = self.addresses[rank] if rank else self._config.coordinator
        else:
            others = self._members.get(rank, {}).values()
            one = next((each.address for each in others), self._config.coordinator)
        again = " If this worker was restarted after all had joined, restart all workers."
        return (
            f"Two workers have the rank {rank}: one at {one} and one at {other.address}. Give each "
            f"worker its own rank, from 0 to {count - 1}.{again if has_joined else ''} "
            f"{see('TFA-206')}"
        )

    def _all_addresses(self, members):
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
        hosts = {0: joined(own, self._own["port"])}
        for rank, each in members.items():
            is_at_own = each.is_local and not each.is_given
            hosts[rank] = joined(own if is_at_own else each.host, each.port)
        return [hosts[rank] for rank in range(self._config.num_workers)]


def listed(ranks: list[int], most: int = 8) -> Iterator[str]:
    """Yield the names of some workers, and how many more there are."""
    yield from (f"worker {rank}" for rank in ranks[:most])
    if len(ranks) > most:
        yield f"{len(ranks) - most} more"
