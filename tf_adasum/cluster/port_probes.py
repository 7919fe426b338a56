"""Tests before TensorFlow starts whether the other tasks can be reached at their ports.

Each task serves a store (`store`) at its port. The key `task` of this store has the task's rank and
its random name for this start. If the task is not task 0, the key also has the reason why it cannot
reach task 0.

A probe is a short `Session` with another task's store, in which both ends authenticate. If task 0
probes a task, the task notes that task 0 can reach it. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from typing import Any

from tf_adasum.cluster.json_lines import printable
from tf_adasum.cluster.members import LONGEST_REASON
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.session import Session
from tf_adasum.cluster.store import Leader
from tf_adasum.cluster.store_client import ANOTHER_PROGRAM, UNPROVEN
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS

# With more tasks, each task only probes the tasks whose ranks are larger by 1, 2, 4, 8 and so on.
_MOST_FOR_ALL_PAIRS = 48
_MOST_SESSIONS = 64  # at a time


class PortProbes:
    """Probes tasks until each has answered. It is not thread-safe.

    Task 0 probes all. If the tasks have joined at another port, it is enough that each of them
    reaches task 0. Otherwise they have a session with task 0, and probe the tasks of other hosts.

    Args:
        cluster: the `Cluster`.
        run: the random name for this start of this task.
        secret: the `Secret`.
        is_elsewhere: whether the workers have joined at another port than that of task 0.

    Attributes:
        reached: the ranks that have answered.
        blocked: dict from the ranks of tasks that have answered, but cannot reach task 0, to the
            reasons.
    """

    def __init__(self, cluster: Cluster, run: str, secret: Secret, is_elsewhere: bool):
        self.reached: set[int] = set()
        self.blocked: dict[int, str] = {}
        self._cluster, self._run, self._secret = cluster, run, secret
        self._ranks = ranks_to_probe(cluster, is_elsewhere)
        self._waiting = list(self._ranks)
        self._sessions: dict[int, Session] = {}
        self._begun: dict[int, float] = {}  # when these sessions began
        self._failures: dict[int, str] = {}
        self._unproven: dict[int, bool] = {}

    def close(self) -> None:
        """End the probes."""
        for session in self._sessions.values():
            session.__exit__()

    @property
    def have_reached_all(self) -> bool:
        """Whether all tasks that this task has to probe have answered."""
        return self.reached.issuperset(self._ranks)

    def update(self, joined: Container[int]) -> None:
        """Note which tasks have answered, and begin to probe others.

        Args:
            joined: the ranks that have a session with task 0, if this task is task 0. Probes of
                other ranks continue, because they may find out why a task cannot reach task 0.
        """
        now = time.monotonic()
        for rank, session in list(self._sessions.items()):
            task, claim = session.value("task"), session.last.unauthenticated
            if claim is not None:
                self._unproven[rank] = claim
            if task is not None and not self.mismatch(rank, task):
                self.reached.add(rank)
                self._unproven.pop(rank, None)
                self._failures.pop(rank, None)
                self.blocked.pop(rank, None)
                if why := printable(task.get("failure"), LONGEST_REASON):
                    self.blocked[rank] = why
                elif rank in joined:
                    self._end(rank)
            elif why := self.mismatch(rank, task) or reason(session.tried):
                self._failures[rank] = why
                if self._waiting and now > self._begun[rank] + HEARTBEAT_SECONDS:
                    self._end(rank)
                    self._waiting.append(rank)
        while self._waiting and len(self._sessions) < _MOST_SESSIONS:
            self._begin(self._waiting.pop(0), now)

    def _begin(self, rank: int, now: float) -> None:
        self._begun[rank] = now
        self._sessions[rank] = Session(
            self._cluster.addresses[rank],
            f"{self._cluster.rank}/{self._run}",
            self._secret,
            lambda channel: {"is_probe": True},
            self._cluster.rank,
        ).__enter__()

    def _end(self, rank: int) -> None:
        self._sessions.pop(rank).__exit__()

    def again(self, rank: int) -> None:
        """Probe again a task that has answered before."""
        if rank in self.reached and rank not in self._sessions:
            self.reached.discard(rank)
            self._begin(rank, time.monotonic())

    def failures(self) -> dict[int, str]:
        """Return a dict from the ranks that have not answered to the reasons."""
        return dict(self._failures)

    def unproven(self) -> dict[int, bool]:
        """Return for each rank without the secret whether it claims to have a secret."""
        return dict(self._unproven)

    def refused_since(self, rank: int) -> float | None:
        """Return since when the port of a task refuses connections; None if it does not."""
        session = self._sessions.get(rank)
        return session.refused_since if session else None

    def mismatch(self, rank: int, task: Any) -> str:
        """Return why the program that answers is not the task with this rank; "" if it is.

        Args:
            rank: the rank.
            task: the value of the key `task`; None if it has not arrived. Then "" is returned.
        """
        if task is None:
            return ""
        other = task.get("rank") if isinstance(task, dict) else None
        if type(other) is not int:
            return ANOTHER_PROGRAM
        if other == rank:
            return ""
        if task.get("run") == self._run:
            return "this task itself answers there"
        names = self._cluster.names
        return f"{names[other] if 0 <= other < len(names) else f'task {other}'} answers there"


def ranks_to_probe(cluster: Cluster, is_elsewhere: bool) -> list[int]:
    """Return the ranks of the tasks that this task has to reach, see `PortProbes`."""
    count, rank = len(cluster.addresses), cluster.rank
    if rank == 0:
        return list(range(1, count))
    if is_elsewhere:
        return [0]
    distances: Iterable[int] = range(count)
    if count > _MOST_FOR_ALL_PAIRS:
        distances = (1 << k for k in range(count.bit_length()))
    hosts = cluster.hosts
    others = {(rank + distance) % count for distance in distances} - {0}
    return sorted(each for each in others if hosts[each] != hosts[rank])


def reason(tried: Mapping[str, str], host: str = "") -> str:
    """Return why a call has failed; "" if it has not failed.

    Args:
        tried: the addresses and reasons of `Call.tried`.
        host: the host that was called. If it has several addresses, they are shown. Defaults to "",
            which shows no addresses.
    """
    whys = list(dict.fromkeys(tried.values()))
    if UNPROVEN in whys:
        return UNPROVEN
    if not host or len(tried) == 1:
        return ", ".join(whys)
    return ", ".join(f"{where}: {why}" for where, why in tried.items() if where != host)


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
