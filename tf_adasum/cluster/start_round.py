"""Worker 0's decision whether a start succeeds or fails. It does no input or output.

Each worker has a session of worker 0's store (`store`), in which it owns a key that describes it:

    member/RANK/RUN      set by each worker. RUN is a random name for this start of the worker
    result               the result for all workers, or the error with which the start fails
    missing              the names of the workers that have not joined
    refused/RANK/RUN     an error for this worker only
    failures, task       only in the rendezvous, see `rendezvous_round` and `port_probes`

A worker that has read the result sets its key to `HAS_RESULT`. The session of a worker ends with
its process, so a restarted worker replaces its old process. Two live sessions with the same rank
are an error. Standard library only.
"""

from __future__ import annotations

import abc
import collections
import itertools
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from tf_adasum.cluster.json_lines import printable
from tf_adasum.cluster.store import Leader
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, LEASE_SECONDS
from tf_adasum.environment_variables import SECRET, SECRET_FILE
from tf_adasum.errors import WorkerLostError, see

HAS_RESULT = {"has_result": True}

# Two live sessions with one rank are an error only after this time. Until then, one of them may be
# the session of a process on a lost host, which ends within `LEASE_SECONDS`.
_GRACE_SECONDS = LEASE_SECONDS + 1.0
_LONGEST_ERROR, _LONGEST_VALUE = 4000, 1500  # characters
_KEY = re.compile(r"(-?[0-9]{1,9})/([0-9a-f]{16})")
_ERRORS = {"": ValueError, "late": TimeoutError, "lost": WorkerLostError}


def error_of(result: Any) -> Exception | None:
    """Return the error in the value of the key `result` or `refused`; None if there is none."""
    wrong = printable(result.get("wrong"), _LONGEST_ERROR) if isinstance(result, dict) else ""
    if not wrong:
        return None
    kind = result.get("kind")
    return _ERRORS[kind if isinstance(kind, str) and kind in _ERRORS else ""](wrong)


class StartRound(Leader):
    """The leader of worker 0's store, see `store.Leader`.

    Args:
        count: the number of workers.
        run: the random name for this start of worker 0.

    Attributes:
        result: the value of the key `result`; None until it is set.
        unauthenticated: dict from the ranks that clients without the secret claim to whether these
            clients claim to have a secret.
        arrived: pairs of a rank and what this worker has sent after the start; None at its end.
    """

    def __init__(self, count: int, run: str):
        self.result: dict[str, Any] | None = None
        self.unauthenticated: dict[int, bool] = {}
        self._count, self._run = count, run
        self._members: dict[int, dict[str, Any]] = {}  # from ranks to live runs
        self._runs: dict[int, str] = {}  # of the workers for which the start has succeeded
        self._duplicate_since: dict[int, float] = {}  # ranks with several live runs
        self._informed: set[int] = set()  # ranks that have read the result
        self._changes: dict[str, Any] = {}  # keys that the server has to set
        self.arrived: collections.deque[tuple[int, Any]] = collections.deque()
        self._has_news = threading.Event()
        self._updates: dict[str, Any] = {}  # the last result of `_news`
        self._next_update = 0.0

    # ---- methods for subclasses ------------------------------------------------------------------

    @abc.abstractmethod
    def _parsed(self, value: Any, ends: tuple[str, str]) -> Any:
        """Return the member in the value of a key.

        Args:
            value: the value, which a client has sent.
            ends: the IP addresses of worker 0 and of the client in the client's connection.

        Raises:
            ValueError: if the value is not valid.
        """

    @abc.abstractmethod
    def _address(self, rank: int, member: Any) -> str:
        """Return the address of a worker, for messages.

        Args:
            rank: the rank of the worker.
            member: the member; None for worker 0, and for any worker after the start has succeeded.
        """

    @abc.abstractmethod
    def _wrong(self, rank: int, member: Any) -> str:
        """Return why the start fails because of a worker; "" if it does not."""

    @abc.abstractmethod
    def _decide(self, members: dict[int, Any], now: float) -> None:
        """Decide from the workers that have joined whether the start succeeds or fails."""

    @abc.abstractmethod
    def _news(self) -> dict[str, Any]:
        """Return the values of keys such as `missing`, which are sent if they have changed."""

    @abc.abstractmethod
    def named(self, ranks: Iterable[int]) -> str:
        """Return the names of some workers, for messages."""

    def _of_another_job(self, member: Any) -> str:
        """Return the error for a worker of another job; "" if it belongs to this job."""
        del member
        return ""

    # ---- for the server --------------------------------------------------------------------------

    def changed(self, key: str, value: Any, ends: tuple[str, str]) -> None:
        """Note that a worker has joined, confirmed the result or ended, see `store.Leader`."""
        found = _KEY.fullmatch(key)
        if not found or found[2] == self._run:
            return
        rank, run = int(found[1]), found[2]
        if value is None:
            self._members.get(rank, {}).pop(run, None)
            self._changes[f"refused/{key}"] = None
        is_new = not isinstance(value, dict) or "settings" not in value
        if is_new and self.result is not None and self._runs.get(rank, run) == run:
            if value is not None:
                self._informed.add(rank)
            if self._runs and value != HAS_RESULT:
                self.arrived.append((rank, value))
        if is_new:
            return
        try:
            member = self._parsed(value, ends)
        except ValueError:
            return
        if wrong := self._of_another_job(member):
            self._refuse(rank, run, wrong)
            return
        wrong = self._wrong(rank, member) or self._wrong_rank(rank, member)
        if self._runs:
            if self._runs.get(rank) != run:
                self._refuse(rank, run, wrong or self._two_of(rank, member))
        elif wrong:
            self.end(wrong)
        if not wrong:
            self.unauthenticated.pop(rank, None)
            self._members.setdefault(rank, {})[run] = member

    def authentication_failed(self, rank: int, has_secret: bool) -> None:
        """Note a client without the secret, see `store.Leader`."""
        if 0 < rank < self._count and not self._members.get(rank):
            self.unauthenticated[rank] = has_secret

    def decide(self, now: float) -> dict[str, Any]:
        """Return new values of keys, see `store.Leader`."""
        if self.result is None:
            self._end_or_decide(now)
        if now >= self._next_update and not self._runs:
            self._next_update = now + HEARTBEAT_SECONDS
            news = self._news()
            sent = self._updates
            self._changes |= {key: each for key, each in news.items() if each != sent.get(key)}
            self._updates = news
        if self.arrived or self._informed:
            self._has_news.set()  # once for all that has arrived
        changes, self._changes = self._changes, {}
        return changes

    def _end_or_decide(self, now: float) -> None:
        """End the start if two sessions of one rank stay; else let the subclass decide."""
        several = {rank for rank, runs in self._members.items() if len(runs) > 1}
        self._duplicate_since = {rank: self._duplicate_since.get(rank, now) for rank in several}
        for rank, since in self._duplicate_since.items():
            if now > since + _GRACE_SECONDS:
                self.end(self._two_of(rank, list(self._members[rank].values())[-1]))
                return
        if not several:
            members = self._members.items()
            self._decide({rank: next(iter(runs.values())) for rank, runs in members if runs}, now)

    # ---- for worker 0 ----------------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Return the ranks of the workers that have not joined."""
        return [rank for rank in range(1, self._count) if not self._members.get(rank)]

    def unproven(self) -> dict[str, bool]:
        """Return for the names of workers without the secret whether they claim to have one."""
        unproven = self.unauthenticated
        return {self.named([rank]): unproven[rank] for rank in self.missing() if rank in unproven}

    def end(self, why: str, kind: str = "") -> bool:
        """Let the start fail on all workers; return False if its result is already known.

        Args:
            why: the message of the error.
            kind: "late" for a timeout, "lost" for a worker that has ended, "secret" for different
                secrets, "elsewhere" if another worker 0 has sent the error. Defaults to "", any
                other error.
        """
        if self.result is not None:
            return False
        self._publish({"wrong": why, "kind": kind})
        return True

    def runs(self) -> dict[int, str]:
        """Return the keys of the workers for which the start has succeeded, by their ranks."""
        return {rank: f"{rank}/{run}" for rank, run in self._runs.items()}

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
            needed = [rank for rank, runs in self._members.items() if runs]
        return self._informed.issuperset(needed)

    def lost(self, now: float) -> str:
        """Return the error if a worker has ended before it has read the result; else ""."""
        del now
        return ""

    def _succeed(self, result: dict[str, Any]) -> None:
        """Publish the result of a start that has succeeded."""
        self._runs = {rank: next(iter(runs)) for rank, runs in self._members.items() if runs}
        self._publish(result)

    def _publish(self, result: dict[str, Any]) -> None:
        self._changes["result"] = self.result = result
        self._has_news.set()

    def _refuse(self, rank: int, run: str, why: str) -> None:
        self._changes[f"refused/{rank}/{run}"] = {"wrong": why}

    def _wrong_rank(self, rank: int, member: Any) -> str:
        if not 0 <= rank < self._count:
            return (
                f"A worker's rank must be from 0 to {self._count - 1}, because there are "
                f"{self._count} workers. Received: worker {rank} ({self._address(rank, member)})"
            )
        return self._two_of(0, member) if rank == 0 and not self._runs else ""

    def _two_of(self, rank: int, other: Any) -> str:
        others = () if self._runs else self._members.get(rank, {}).values()
        one = next((each for each in others if each is not other), None)
        again = " If this worker was restarted after all had joined, restart all workers."
        return (
            f"Two workers have the rank {rank}: one at {self._address(rank, one)} and one at "
            f"{self._address(rank, other)}. Give each worker its own rank, from 0 to "
            f"{self._count - 1}.{again if self._runs else ''} {see('TFA-206')}"
        )


def different_settings(
    own: dict[str, Any], others: dict[str, Any], own_name: str, other_name: str
) -> str:
    """Return the error if settings of worker 0 and of another worker differ; "" if they do not.

    Args:
        own: the settings of worker 0.
        others: the settings of the other worker.
        own_name: the name of worker 0, with its address.
        other_name: the name of the other worker.
    """
    for setting in dict.fromkeys([*own, *others]):
        if own.get(setting) != others.get(setting):
            values = _shown(own.get(setting), others.get(setting))
            return (
                f"All workers must be started with the same {printable(setting, 100)}. Received: "
                f"{values[0]} on {own_name}, {values[1]} on {other_name} {see('TFA-207')}"
            )
    return ""


def _shown(*values: Any) -> list[str]:
    """Return two values that differ, as texts; of long lists, only the first place that differs."""
    texts = [printable(str(each), _LONGEST_VALUE + 1) for each in values]
    if max(map(len, texts)) > _LONGEST_VALUE and all(isinstance(each, list) for each in values):
        pairs = enumerate(itertools.zip_longest(*values))
        index = next(index for index, (one, other) in pairs if one != other)
        texts = [
            f"{each[index] if index < len(each) else 'nothing'} at index {index} of {len(each)}"
            for each in values
        ]
    return [printable(text, _LONGEST_VALUE) for text in texts]


def different_secrets(name: str, has_secret: bool, others: Mapping[str, bool]) -> str:
    """Return the error message for workers that were started with different secrets.

    Args:
        name: the name of this worker.
        has_secret: whether this worker has a secret.
        others: dict from the names of the other workers to whether they have a secret.
    """
    words = {(False, True): "a secret", (True, True): "a different secret"}
    received = [f"{'a secret' if has_secret else 'no secret'} on {name}"]
    received += [
        f"{words.get((has_secret, its), 'no secret')} on {other}" for other, its in others.items()
    ]
    return (
        f"All workers must be started with the same secret, in the variable {SECRET} or "
        f"in a file that {SECRET_FILE} names. Received: {', '.join(received)} "
        f"{see('TFA-207')}"
    )
