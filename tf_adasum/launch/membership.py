"""Decides which hosts train together, when hosts join and leave a job. No input or output.

A *round* is the training on one set of hosts. TensorFlow's server cannot change its members, so a
round ends when a host joins or is lost, and all workers start again in the next round.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS
from tf_adasum.launch.failures import EXIT_STOP_REQUESTED, EXIT_USAGE
from tf_adasum.launch.processes import BACKUP_GRACE_SECONDS

# The first round begins this many seconds after the last host joined, or when the maximum number of
# hosts has joined.
SECONDS_BEFORE_FIRST_ROUND = 10.0
# It begins at the latest this many seconds after enough hosts have joined, even if other hosts join
# again and again.
MOST_SECONDS_BEFORE_FIRST_ROUND = 60.0
# A round is stopped to add a host this many seconds after it joined; four times as many after each
# round in which a host that had been added was lost.
SECONDS_BEFORE_JOINING, _MOST_SECONDS_BEFORE_JOINING = 0.5, 300.0
# After the grace time, a host has this many seconds to report that its workers have ended.
SECONDS_TO_REPORT = 20.0
# Between SIGTERM and SIGKILL, if workers wait for a lost worker and cannot make a backup.
LOST_GRACE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Host:
    """A host with a launcher that is connected.

    Attributes:
        id: a random name for this start of the launcher.
        name: the name of the host.
        workers: the number of its workers.
        ended: the last round whose workers have ended on this host; 0 before the first.
        status: the exit status of this host's workers in that round.
        has_own_failure: whether a worker of this host failed, and not because of another worker.
        leaving: what its launcher has received, such as "received SIGTERM", if it leaves the job
            now that its workers have ended; "" if it stays.
    """

    id: str
    name: str
    workers: int
    ended: int = 0
    status: int = 0
    has_own_failure: bool = False
    leaving: str = ""

    @classmethod
    def parsed(cls, value: Any, id: str) -> Host:
        """Return the `Host` with this id in a value that a client has sent.

        Raises:
            TypeError, ValueError: if it is not a host with this id.
        """
        host = cls(**value)
        for field in dataclasses.fields(cls):
            if type(getattr(host, field.name)).__name__ != field.type:
                raise TypeError(f"{field.name} is not of type {field.type}")
        is_printable = host.name.isprintable() and host.leaving.isprintable()
        if host.id != id or host.workers < 1 or host.ended < 0 or not is_printable:
            raise ValueError("not a host")
        return host


@dataclasses.dataclass(frozen=True)
class Begin:
    """A decision: hosts begin a round.

    Attributes:
        round: the number of the round, from 1.
        hosts: the hosts, in the order of their ranks.
        coordinator: the address of worker 0; "" until the leader has taken a port.
    """

    round: int
    hosts: Sequence[Host]
    coordinator: str = ""


@dataclasses.dataclass(frozen=True)
class Stop:
    """A decision: the workers of a round stop, and the hosts wait for the next round.

    Attributes:
        round: the round.
        reason: the reason that the launchers print.
        grace: seconds between SIGTERM and SIGKILL.
    """

    round: int
    reason: str
    grace: float


@dataclasses.dataclass(frozen=True)
class End:
    """A decision: the job ends with an exit status, and a reason unless all workers succeeded."""

    status: int
    reason: str


@dataclasses.dataclass(eq=False)
class Membership:
    """The rounds of a job.

    Attributes:
        minimum: the smallest number of hosts that train.
        maximum: the largest number of hosts that train; more hosts wait as spares.
        max_restarts: the largest number of restarts after a worker has failed.
        leader: the id of the host that calls `decide`. It is node 0 of each round.
        seconds_below_minimum: for how long there may be fewer hosts than `minimum`.
    """

    minimum: int
    maximum: int
    max_restarts: int
    leader: str
    seconds_below_minimum: float

    def __post_init__(self) -> None:
        """Begin before the first round."""
        self._round = self._failures = 0
        self._members: list[Host] = []  # of the round that is running
        self._last_round: dict[str, int] = {}  # of each host
        self._ended: set[str] = set()  # ids of hosts whose workers have ended in this round
        self._first_ended = ""  # the id of the host because of which the round was stopped
        self._stop_at = math.inf  # when hosts that have not stopped their workers count as lost
        self._has_finished = False  # whether all workers of a host have succeeded in this round
        self._is_stopping = self._has_ended = False
        self._hosts_changed = False  # whether a host was lost, or joins after this round
        self._joined_at: dict[str, float] = {}  # of the hosts that are connected
        self._added: set[str] = set()  # ids of hosts that joined after the last round began
        self._times_lost = 0  # rounds in a row in which an added host was lost
        self._last_enough_at = self._began_at = -math.inf
        self._enough_since = math.inf  # since when enough hosts have been connected

    def decide(self, hosts: Sequence[Host], now: float) -> Begin | Stop | End | None:
        """Return the next decision for the hosts that are connected; None if nothing changes.

        Args:
            hosts: in the order in which they joined.
            now: seconds of a clock that does not go back.
        """
        if self._has_ended:
            return None
        if self._last_enough_at == -math.inf:  # the first call
            self._last_enough_at = now
        self._joined_at = {host.id: self._joined_at.get(host.id, now) for host in hosts}
        decision = self._watch_round(hosts, now) if self._members else None
        if decision is None and not self._members:  # the round may just have ended
            decision = self._begin_round(hosts, now)
        self._has_ended = isinstance(decision, End)
        return decision

    def end(self) -> None:
        """Decide nothing more, because the job has ended for another reason."""
        self._has_ended = True

    def _begin_round(self, hosts: Sequence[Host], now: float) -> Begin | End | None:
        """Decide while no round is running."""
        if self.leader not in self._ended and any(
            self._has_succeeded(host) for host in hosts
        ):  # it counted as lost, because its workers took too long to stop
            return End(0, "")
        hosts = self._idle(hosts)
        has_leader = any(host.id == self.leader for host in hosts)
        if not has_leader or len(hosts) < self.minimum:
            self._enough_since = math.inf
            if now <= self._last_enough_at + self.seconds_below_minimum:
                return None
            names = ", ".join(host.name for host in hosts) or "none"
            reason = (
                f"fewer hosts than the minimum, {self.minimum}, were available for "
                f"{self.seconds_below_minimum:.0f} s. Available: {names}"
            )
            return End(1, reason)
        self._last_enough_at = now
        self._enough_since = min(self._enough_since, now)
        is_quiet = (
            now >= max(self._joined_at.values()) + SECONDS_BEFORE_FIRST_ROUND
            or now >= self._enough_since + MOST_SECONDS_BEFORE_FIRST_ROUND
        )
        may_begin = self._round or len(hosts) >= self.maximum or is_quiet
        # So that a script that fails at once is not run nonstop.
        if not may_begin or now < self._began_at + HEARTBEAT_SECONDS:
            return None
        self._began_at = now
        self._round += 1
        leader_first = sorted(hosts, key=lambda host: host.id != self.leader)
        self._members = leader_first[: self.maximum]
        if self._last_round:
            self._added = {each.id for each in self._members} - self._last_round.keys()
        self._is_stopping = self._hosts_changed = self._has_finished = False
        self._first_ended, self._ended = "", set()
        self._last_round |= {host.id: self._round for host in self._members}
        return Begin(self._round, tuple(self._members))

    def _has_succeeded(self, host: Host) -> bool:
        """Return whether this is the host of worker 0, and its workers have succeeded."""
        return host.id == self.leader and 0 < host.ended == self._round and host.status == 0

    def _watch_round(self, hosts: Sequence[Host], now: float) -> Stop | End | None:
        """Decide while a round is running."""
        present = {host.id: host for host in hosts}
        found = [present[own.id] for own in self._members if own.id in present]
        ended = [host for host in found if host.ended == self._round]
        self._ended |= {host.id for host in ended}
        lost = [own for own in self._members if own.id not in present and own.id not in self._ended]
        if self._added & {own.id for own in lost}:
            self._times_lost, self._added = self._times_lost + 1, set()
        self._has_finished |= any(host.status == 0 for host in ended)
        self._hosts_changed |= len(found) < len(self._members)
        self._hosts_changed |= any(host.leaving for host in ended)
        if self._is_stopping and now >= self._stop_at and len(ended) < len(found):
            self._hosts_changed, found = True, ended
        if len(ended) == len(found):
            return self._end_round(ended, now)
        can_be_sooner = now + LOST_GRACE_SECONDS + SECONDS_TO_REPORT < self._stop_at
        if self._is_stopping and not (lost and can_be_sooner):
            return None
        if self._has_finished:  # training is complete on all hosts, so the others will end soon
            return None
        if lost:
            were = "was" if len(lost) == 1 else "were"
            return self._stop(f"{_hosts(lost)} {were} lost", LOST_GRACE_SECONDS, now)
        if ended:
            was_asked = any(host.status == EXIT_STOP_REQUESTED for host in ended)
            grace = BACKUP_GRACE_SECONDS if was_asked else LOST_GRACE_SECONDS
            self._first_ended = ended[0].id
            if ended[0].leaving:
                reason = f"host {ended[0].name} leaves: its launcher {ended[0].leaving}"
            else:
                reason = f"a worker of host {ended[0].name} has ended"
            return self._stop(reason, grace, now)
        members = {own.id for own in self._members}
        seconds = min(SECONDS_BEFORE_JOINING * 4**self._times_lost, _MOST_SECONDS_BEFORE_JOINING)
        new = [
            host
            for host in self._idle(hosts)
            if host.id not in members and now >= self._joined_at[host.id] + seconds
        ]
        if new and len(members) < self.maximum:
            self._hosts_changed = True
            return self._stop(f"{_hosts(new)} can join", BACKUP_GRACE_SECONDS, now)
        return None

    def _end_round(self, ended: Sequence[Host], now: float) -> End | None:
        """Decide when the workers of a round have ended on all hosts that are left."""
        self._members, self._last_enough_at = [], now
        if self._added:
            self._times_lost = 0
        failed = sorted(
            (host for host in ended if host.status),
            key=lambda host: (not host.has_own_failure, host.id != self._first_ended),
        )
        if ended and not failed:
            return End(0, "")
        if not failed:  # all hosts of the round were lost
            return None
        first = failed[0]
        reason = f"a worker of host {first.name} failed"
        # Worker 0 saves the results, so the job is complete if it has ended.
        is_complete = any(map(self._has_succeeded, ended))
        is_because_of_others = is_complete and not first.has_own_failure
        if is_because_of_others and self._hosts_changed:
            return End(0, "")
        if is_because_of_others or first.status == EXIT_USAGE:
            return End(first.status, reason)
        if self._hosts_changed and not (self._has_finished and first.has_own_failure):
            return None
        if not first.has_own_failure and any(host.status == EXIT_STOP_REQUESTED for host in failed):
            return End(EXIT_STOP_REQUESTED, "a worker received a signal")
        self._failures += 1
        if self._failures <= self.max_restarts:
            return None
        return End(first.status, f"{reason}, and --max-restarts is {self.max_restarts}")

    def _idle(self, hosts: Sequence[Host]) -> list[Host]:
        """Return the hosts that have reported the end of their last round, and stay."""
        return [
            host
            for host in hosts
            if host.ended >= self._last_round.get(host.id, 0) and not host.leaving
        ]

    def _stop(self, reason: str, grace: float, now: float) -> Stop:
        self._is_stopping, self._stop_at = True, now + grace + SECONDS_TO_REPORT
        return Stop(self._round, reason, grace)


def _hosts(hosts: Sequence[Host]) -> str:
    names = ", ".join(host.name for host in hosts)
    return f"{'host' if len(hosts) == 1 else 'hosts'} {names}"
