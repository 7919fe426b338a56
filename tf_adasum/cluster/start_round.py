"""Worker 0's decision whether a start succeeds or fails. It does no input or output.

Each worker has a session of worker 0's store (`store`), in which it owns a key that describes it:

    RANK/RUN             set by each other worker. RUN is a random name for this start of the worker
    result               the result for all workers, or the error with which the start fails
    missing              the names of the workers for which worker 0 waits
    unproven             the error about workers among them that have another secret
    refused/RANK/RUN     an error for this worker only
    addresses            the addresses of all workers, if they do not know them

A worker that has read the result sets its key to `HAS_RESULT`. The session of a worker ends with
its process, so until all have joined, a restarted worker replaces its old process. Two live
sessions with the same rank are an error. Standard library only.
"""

import collections
import dataclasses
import re
import threading
from collections.abc import Iterable
from typing import Any

from tf_adasum.cluster.members import Member, all_addresses
from tf_adasum.cluster.messages import different_secrets, different_settings, lost, printable
from tf_adasum.cluster.store import Leader
from tf_adasum.cluster.tasks import Cluster, listed
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, LEASE_SECONDS
from tf_adasum.environment_variables import INTERFACE
from tf_adasum.errors import WorkerLostError, see

HAS_RESULT = {"has_result": True}

# Two live sessions with one rank are an error only after this time. Until then, one of them may be
# the session of a process on a lost host, which ends within `LEASE_SECONDS`.
_GRACE_SECONDS = LEASE_SECONDS + 1.0
_LONGEST_ERROR = 4000  # characters
_KEY = re.compile(r"(-?[0-9]{1,9})/([0-9a-f]{16})")
_ERRORS = {"late": TimeoutError, "lost": WorkerLostError}


def error_of(result: Any) -> Exception | None:
    """Return the error in the value of the key `result` or `refused`; None if there is none."""
    wrong = printable(result.get("wrong"), _LONGEST_ERROR) if isinstance(result, dict) else ""
    if not wrong:
        return None
    return _ERRORS.get(str(result.get("kind")), ValueError)(wrong)


class StartRound(Leader):
    """The leader of worker 0's store, see `store.Leader`.

    If the workers do not know all addresses, it first collects them. Then it compares the settings
    of all workers.

    Args:
        cluster: the `Cluster`, as worker 0 knows it at first.
        own_key: the key that worker 0 would have.
        own: the value that the key of worker 0 would have.

    Attributes:
        cluster: the `Cluster`, with all addresses as soon as all workers have joined.
        result: the value of the key `result`; None until it is set.
        unauthenticated: the ranks that clients without the secret claim to have.
        keys: dict from the ranks of the workers that have all joined to their keys.
        arrived: pairs of a rank and what this worker has sent after the start; None at its end.
    """

    def __init__(self, cluster: Cluster, own_key: str, own: dict[str, Any]):
        self.cluster, self._own_key, self._own = cluster, own_key, own
        self._count = cluster.num_workers
        self.result: dict[str, Any] | None = None
        self.unauthenticated: set[int] = set()
        self._settings: dict[str, Any] | None = None  # of worker 0, until `begin` is called
        self._payload: dict[str, Any] = {}
        self._members: dict[int, dict[str, Member]] = {}  # from ranks to live keys
        self.keys: dict[int, str] = {}
        self._duplicate_since: dict[int, float] = {}  # ranks with several live keys
        self._known: set[int] = set()  # ranks that have had a session, and are not silent
        self._silent: set[str] = set()  # keys of silent sessions
        self._gone_since: dict[int, float] = {}  # ranks whose session was closed
        self._informed: set[int] = set()  # ranks that have read the result
        self._changes: dict[str, Any] = {}  # keys that the server has to set
        self.arrived: collections.deque[tuple[int, Any]] = collections.deque()
        self._has_news = threading.Event()
        self._next_update = 0.0

    # ---- for the server --------------------------------------------------------------------------

    def changed(self, key: str, value: Any, ends: tuple[str, str]) -> None:
        """Note that a worker has joined, confirmed the result or ended, see `store.Leader`."""
        found = _KEY.fullmatch(key)
        if not found or key == self._own_key:
            return
        rank = int(found[1])
        if value is None:
            self._members.get(rank, {}).pop(key, None)
            if key in self._silent:
                self._known.add(rank)
            self._changes[f"refused/{key}"] = None
        if not isinstance(value, dict) or "cluster" not in value:
            if self.result is not None and self.keys.get(rank, key) == key:
                if value is not None:
                    self._informed.add(rank)
                if self.keys and value != HAS_RESULT:
                    self.arrived.append((rank, value))
            return
        has_place = not self.cluster.addresses or "coordinator" in value
        member = Member.parsed(value, ends, has_place)
        wrong = self._of_another_job(member)
        if not wrong and self.keys.get(rank, "" if self.keys else key) != key:
            wrong = self._wrong(rank, member) or self._two_of(rank, member)
        if wrong:
            self._changes[f"refused/{key}"] = {"wrong": wrong}
        elif wrong := self._wrong(rank, member):
            self.end(wrong)
        else:
            self.unauthenticated.discard(rank)
            self._members.setdefault(rank, {})[key] = member

    def authentication_failed(self, rank: int) -> None:
        """Note a client without the secret, see `store.Leader`."""
        if 0 < rank < self._count and not self._members.get(rank):
            self.unauthenticated.add(rank)

    def silent(self, key: str, ends: tuple[str, str]) -> None:
        """Note that a worker is silent. It may come back, so it is not lost before it ends."""
        found = _KEY.fullmatch(key)
        if found and self._members.get(int(found[1]), {}).pop(key, None):
            self._known.discard(int(found[1]))
            self._silent.add(key)

    def decide(self, now: float) -> dict[str, Any]:
        """Return new values of keys, see `store.Leader`."""
        if self.result is None:
            self._end_or_decide(now)
        if now >= self._next_update and self.result is None:
            self._next_update = now + HEARTBEAT_SECONDS
            self._changes |= {"missing": self.absent(), "unproven": self.unproven()}
        if self.arrived or self._informed:
            self._has_news.set()  # once for all that has arrived
        changes, self._changes = self._changes, {}
        return changes

    def _end_or_decide(self, now: float) -> None:
        """End the start if two sessions of one rank stay; else decide."""
        several = {rank for rank, live in self._members.items() if len(live) > 1}
        self._duplicate_since = {rank: self._duplicate_since.get(rank, now) for rank in several}
        for rank, since in self._duplicate_since.items():
            if now > since + _GRACE_SECONDS:
                self.end(self._two_of(rank, list(self._members[rank].values())[-1]))
                return
        if several:
            return
        members = {rank: next(iter(live.values())) for rank, live in self._members.items() if live}
        if not self.cluster.addresses and len(members) == self._count - 1:
            self._join(members)
        elif self._settings is not None:
            self._decide(members, now)

    def _join(self, members: dict[int, Member]) -> None:
        """Publish the addresses of all workers."""
        found = all_addresses(self._own["host"], self._own["port"], members)
        twice = {address for address in found if found.count(address) > 1}
        if twice:
            ranks = [str(rank) for rank, each in enumerate(found) if each in twice]
            self.end(
                f"Workers {', '.join(ranks)} have the same address: {', '.join(sorted(twice))}. On "
                f"each of these workers, set {INTERFACE} to the address at which the other workers "
                f"reach this worker. {see('TFA-206')}"
            )
            return
        self.cluster = dataclasses.replace(self.cluster, addresses=found)
        self._keep()
        self._known.update(self.keys)  # one may end before `begin`
        self._changes["addresses"] = found
        self._has_news.set()

    def _decide(self, members: dict[int, Member], now: float) -> None:
        """Decide from the workers with a session whether the start succeeds or fails."""
        if text := self.lost(now):
            self.end(text, "lost")
        elif sum(each.settings is not None for each in members.values()) == self._count - 1:
            self._keep()
            self._publish({"payload": self._payload})

    def _keep(self) -> None:
        """Keep the workers that are there: from now on, nobody can replace them."""
        self.keys = {rank: next(iter(live)) for rank, live in self._members.items() if live}

    # ---- for worker 0 ----------------------------------------------------------------------------

    def begin(self, settings: dict[str, Any], payload: dict[str, Any]) -> None:
        """Begin to compare the settings of all workers, which have all addresses.

        Args:
            settings: the settings of worker 0.
            payload: other data of worker 0, for all workers.
        """
        self._settings, self._payload = settings, payload
        for rank, live in self._members.items():
            for member in live.values():
                if wrong := self._wrong(rank, member):
                    self.end(wrong)

    def missing(self) -> list[int]:
        """Return the ranks of the workers that have not joined, or have not sent their settings."""
        needs_settings = bool(self.cluster.addresses)
        found = [0] if needs_settings and self._settings is None else []
        for rank in range(1, self._count):
            live = self._members.get(rank, {}).values()
            if not live or (needs_settings and all(each.settings is None for each in live)):
                found.append(rank)
        return found

    def claimed(self) -> list[int]:
        """Return the ranks of missing workers that clients without the secret claim to be."""
        return [rank for rank in self.missing() if rank in self.unauthenticated]

    def unproven(self) -> str:
        """Return the error about workers without the secret, as far as clients claim to be them."""
        found = self.cluster.named(self.claimed())
        return found and different_secrets(self.named(0), found)

    def end(self, why: str, kind: str = "") -> None:
        """Let the start fail on all workers, unless its result is already known.

        Args:
            why: the message of the error.
            kind: "late" for a timeout, "lost" for a worker that has ended, "secret" for different
                secrets, "elsewhere" if another worker 0 has sent the error. Defaults to "", any
                other error.
        """
        if self.result is None:
            self._publish({"wrong": why, "kind": kind})

    def wait(self, seconds: float) -> None:
        """Wait until there is a result, or a worker has sent or read something after the start."""
        self._has_news.wait(seconds)
        self._has_news.clear()

    def publish(self, key: str, value: Any) -> None:
        """Publish another key after the start. The store's lock must be held."""
        self._changes[key] = value

    def has_informed_all(self) -> bool:
        """Return whether all workers have read the result.

        After a timeout, only workers with a live session count.
        """
        needed: Iterable[int] = range(1, self._count)
        if self.result is not None and self.result.get("kind") == "late":
            needed = [rank for rank, live in self._members.items() if live]
        return self._informed.issuperset(needed)

    def lost(self, now: float) -> str:
        """Return the error if a worker has ended before it has read the result; else ""."""
        live = {rank for rank, live in self._members.items() if live}
        self._known |= live
        gone = self._known - live - self._informed
        self._gone_since = {rank: self._gone_since.get(rank, now) for rank in gone}
        for rank, since in self._gone_since.items():
            if now > since + LEASE_SECONDS:  # or it may restart
                return lost(self.cluster, rank)
        return ""

    def _publish(self, result: dict[str, Any]) -> None:
        self._changes["result"] = self.result = result
        self._has_news.set()

    # ---- messages --------------------------------------------------------------------------------

    def named(self, rank: int) -> str:
        """Return the name of a worker."""
        return self.cluster.named([rank])

    def absent(self) -> str:
        """Return the names of the workers that have not started, or cannot reach worker 0."""
        return listed([self.named(rank) for rank in self.missing()])

    def _of_another_job(self, member: Member) -> str:
        """Return the error for a worker of another job; "" if it belongs to this job."""
        own, other = self._own.get("job"), member.job
        if not own or not other or other == own:
            return ""
        return (
            f"Another job's worker 0 answers at {self.cluster.coordinator}. That worker belongs to "
            f"job {own}, but this worker belongs to job {other}. Give each job its own "
            f"coordinator. {see('TFA-212')}"
        )

    def _wrong(self, rank: int, member: Member) -> str:
        """Return why the start fails because of a worker; "" if it does not."""
        is_rank = 0 <= rank < self._count
        is_known = is_rank and self.cluster.addresses
        name = self.named(rank) if is_known else f"worker {rank} ({member.at})"
        names = self.named(0), name
        wrong = different_settings(self._own["cluster"], member.cluster, *names)
        if not wrong and self._settings is not None and member.settings is not None:
            wrong = different_settings(self._settings, member.settings, *names)
        if not wrong and not is_rank:
            wrong = (
                f"A worker's rank must be from 0 to {self._count - 1}, because there are "
                f"{self._count} workers. Received: {name}"
            )
        return wrong or (self._two_of(0, member) if rank == 0 else "")

    def _two_of(self, rank: int, other: Member) -> str:
        others = () if self.keys else self._members.get(rank, {}).values()
        one = next((each.at for each in others if each is not other), self.cluster.address(rank))
        again = " If this worker was restarted after all had joined, restart all workers."
        return (
            f"Two workers have the rank {rank}: one at {one} and one at {other.at}. Give each "
            f"worker its own rank, from 0 to {self._count - 1}.{again if self.keys else ''} "
            f"{see('TFA-206')}"
        )
