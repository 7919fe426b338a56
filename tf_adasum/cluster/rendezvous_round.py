"""Task 0's decision whether a rendezvous succeeds or fails. It uses the network only for probes.

Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tf_adasum.cluster.json_lines import printable
from tf_adasum.cluster.port_probes import LONGEST_REASON, PortProbes
from tf_adasum.cluster.start_round import StartRound, different_secrets, different_settings
from tf_adasum.cluster.store import Leader
from tf_adasum.cluster.store_client import wrong_program
from tf_adasum.cluster.tasks import Cluster, listed
from tf_adasum.cluster.timeouts import LEASE_SECONDS
from tf_adasum.errors import see

_MOST_SENTENCES = 8


@dataclasses.dataclass(frozen=True)
class Member:
    """A task, as its key describes it.

    Attributes:
        host: the IP address of the task in its connection.
        settings: the settings that must match on all tasks.
        failures: dict from the ranks that the task cannot reach to the reasons.
        has_reached_all: whether the task has reached all tasks that it has to probe.
    """

    host: str
    settings: dict[str, Any]
    failures: dict[int, str]
    has_reached_all: bool


class RendezvousRound(StartRound):
    """Compares the settings of all tasks, and waits until the tasks have reached each other.

    Args:
        cluster: the `Cluster`.
        run: the random name for this start of task 0.
        settings: the settings of task 0.
        payload: other data of task 0, for all tasks.
        probes: the `PortProbes` of task 0.
        has_secret: whether task 0 has a secret.
    """

    def __init__(
        self,
        cluster: Cluster,
        run: str,
        settings: dict[str, Any],
        payload: dict[str, Any],
        probes: PortProbes,
        has_secret: bool,
    ):
        super().__init__(len(cluster.addresses), run)
        self._cluster, self._settings, self._payload = cluster, settings, payload
        self._probes, self._has_secret = probes, has_secret
        self._known: set[int] = set()  # ranks that have had a session
        self._changes["task"] = {"rank": 0, "run": run}

    def _parsed(self, value: Any, ends: tuple[str, str]) -> Member:
        found = value if isinstance(value, dict) else {}
        settings = found.get("settings")
        if not isinstance(settings, dict):
            raise ValueError("not a task")
        reasons = found.get("failures")
        failures = {
            int(rank): printable(why, LONGEST_REASON)
            for rank, why in (reasons.items() if isinstance(reasons, dict) else ())
            if rank.isdecimal() and len(rank) < 10 and isinstance(why, str)
        }
        return Member(ends[1], settings, failures, found.get("has_reached_all") is True)

    def _address(self, rank: int, member: Member | None) -> str:
        if member is not None and not 0 < rank < self._count:
            return member.host
        host = f" (connected from {member.host})" if member is not None else ""
        return f"{self._cluster.addresses[rank]}{host}"

    def _wrong(self, rank: int, member: Member) -> str:
        is_task = 0 <= rank < self._count
        name = self._cluster.named([rank]) if is_task else f"task {rank} on {member.host}"
        first = self._cluster.named([0])
        return different_settings(self._settings, member.settings, first, name)

    def _decide(self, members: dict[int, Member], now: float) -> None:
        probes = self._probes
        probes.update(members)
        if text := self.lost(now):
            self.end(text, "lost")
            return
        others = range(1, self._count)
        unproven = self.unauthenticated.keys() & probes.unproven().keys()
        if unproven and unproven.union(members).issuperset(others):
            text = different_secrets(self.named([0]), self._has_secret, self.unproven())
            self.end(text, "secret")
        elif (
            len(members) == len(others)
            and probes.have_reached_all
            and all(each.has_reached_all for each in members.values())
        ):
            self._succeed({"payload": self._payload})

    def lost(self, now: float) -> str:
        """Return the error if the process of a task has ended; else ""."""
        live = {rank for rank, runs in self._members.items() if runs}
        self._known |= live
        for rank in self._known - live - self._informed:
            self._probes.again(rank)
            since = self._probes.refused_since(rank)
            if since is not None and now > since + LEASE_SECONDS:  # or it may restart
                return lost(self._cluster, rank)
        return ""

    def named(self, ranks: Iterable[int]) -> str:
        """Return the names of some tasks, see `StartRound.named`."""
        return self._cluster.named(ranks)

    def unproven(self) -> dict[str, bool]:
        """Return the tasks without the secret, see `StartRound.unproven`."""
        probed = self._probes.unproven()
        missing = [rank for rank in self.missing() if rank in probed]
        return {**{self.named([rank]): probed[rank] for rank in missing}, **super().unproven()}

    def _news(self) -> dict[str, Any]:
        return {"missing": self.absent(), "failures": " ".join(self.failures())}

    def absent(self) -> str:
        """Return the names of the tasks that have not started, or cannot be reached."""
        reached = self._probes.reached
        return listed([self.named([each]) for each in self.missing() if each not in reached])

    def failures(self) -> list[str]:
        """Return sentences about failed connections between tasks, with the reasons."""
        cluster, probes, missing = self._cluster, self._probes, self.missing()
        sentences = failure_sentences(cluster, 0, probes.failures())
        for rank in missing:
            if why := probes.blocked.get(rank):
                sentences += failure_sentences(cluster, rank, {0: why})
            elif rank in probes.reached:
                sentences.append(f"{cluster.names[rank]} has not reached {cluster.named([0])}.")
        absent = {rank for rank in missing if rank not in probes.reached}
        for rank in range(1, self._count):
            for member in self._members.get(rank, {}).values():
                others = {to: why for to, why in member.failures.items() if to not in absent}
                sentences += failure_sentences(cluster, rank, others)
        sentences = list(dict.fromkeys(sentences))
        more = len(sentences) - _MOST_SENTENCES
        if more > 0:
            return [*sentences[:_MOST_SENTENCES], f"There are {more} more such failures."]
        return sentences


class OwnTask(Leader):
    """The leader of the store of any other task than task 0. It sets the key `task`.

    Args:
        rank: the rank of this task.
        run: the random name for this start of this task.

    Attributes:
        failure: why this task cannot reach task 0; "" if it can, or has not tried.
        is_reached_by_task_0: whether task 0 has probed this task.
    """

    def __init__(self, rank: int, run: str):
        self.failure, self.is_reached_by_task_0 = "", False
        self._task: dict[str, Any] = {"rank": rank, "run": run}
        self._sent: dict[str, Any] = {}

    def changed(self, key: str, value: Any, ends: tuple[str, str]) -> None:
        """Note whether task 0 has probed this task, see `store.Leader`."""
        del ends
        self.is_reached_by_task_0 |= key.startswith("0/") and value is not None

    def decide(self, now: float) -> dict[str, Any]:
        """Return new values of keys, see `store.Leader`."""
        del now
        task = {**self._task, "failure": self.failure}
        if task == self._sent:
            return {}
        self._sent = task
        return {"task": task}


def lost(cluster: Cluster, rank: int) -> str:
    """Return the error message for a task that has ended during the rendezvous."""
    return (
        f"{cluster.named([rank])} was lost while the workers started: its process has ended "
        f"without reporting an error. Restart all workers. {see('TFA-501')}"
    )


def failure_sentences(cluster: Cluster, who: int, failures: Mapping[int, str]) -> list[str]:
    """Return sentences about which tasks a task cannot reach.

    Args:
        cluster: the `Cluster`.
        who: the rank of the task.
        failures: dict from the ranks that it cannot reach to the reasons; "" for no reason.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, why in sorted(failures.items()):
        if why and 0 <= rank < len(cluster.addresses):
            ranks_of.setdefault(why, []).append(rank)
    sentences = []
    for why, ranks in ranks_of.items():
        others = cluster.named(ranks)
        cannot = f"{cluster.names[who]} cannot reach {others}: {why}."
        sentences.append(wrong_program(why, others) or cannot)
    return sentences
