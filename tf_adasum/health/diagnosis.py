"""Decides from the statuses of all workers whether this worker can continue, and if not, why.

All functions are pure. TensorFlow itself detects after ten seconds that a worker has ended. It does
not detect that a worker is alive but does not join a collective. Standard library only.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum.cluster.messages import printable
from tf_adasum.cluster.tasks import Cluster, listed
from tf_adasum.errors import LAUNCHER, RESTARTS, see
from tf_adasum.health.call_log import Entry

# If all workers have waited in collectives for this many seconds, the collectives count as
# different: MISMATCH_SECONDS if some workers wait in Python and others do not, else
# DEADLOCK_SECONDS. The limits are this long because of slow links: a large collective may take
# long, and some workers leave it before others.
MISMATCH_SECONDS, DEADLOCK_SECONDS = 60.0, 120.0

# Seconds after which a worker stops waiting in a collective if another worker has ended or failed.
# Until then, the collective may still complete, if the other worker had already joined it.
GRACE = 2.0

# Seconds for which all workers must have waited before they count as waiting for each other,
# because their statuses are not from the same moment.
ALL_WAITING_GRACE = 10.0

# The same limit if all workers have entered the same number of collectives, but wait in different
# collectives.
DIFFERENT_CALLS_GRACE = 3.0

# Seconds of waiting after which the message names a worker that cannot be reached. If the link
# recovers earlier, training continues.
UNREACHABLE_SECONDS = 30.0

_CORRECT_IT = "Correct the cause of this error."
_THE_SAME_PROGRAM = (
    "All workers have to run the same program, with the same callbacks and settings. Restart all "
    "of them."
)


def recovery_advice(environment: Mapping[str, str] = os.environ) -> str:
    """Return the advice after a worker was lost; it names the launcher if the launcher is used."""
    resume = "with callbacks.BackupAndRestore they resume from the last backup"
    launcher = environment.get(LAUNCHER)
    if launcher == RESTARTS:
        return f"The launcher starts all workers again; {resume}."
    by_launcher = " (tf-adasum-launch --max-restarts restarts them for you)" if launcher else ""
    return f"Restart all workers; {resume}{by_launcher}."


RECOVERY_ADVICE = recovery_advice()

# The limits of a status that another process sends. A longer text is cut off.
_STATES = ("starting", "running", "failed", "ended", "lost", "aborted")
_LONGEST_TEXT, _LARGEST_NUMBER = 4000, 1 << 62


@dataclasses.dataclass(frozen=True)
class Status:
    """The status that a worker sends, or that is derived for a worker that sends nothing any more.

    Attributes:
        state: "starting", "running", "failed" (an exception left `fit`), "ended", "lost", or
            "aborted" (the worker cannot continue).
        why: the reason for "failed", "ended", "lost" or "aborted", in one line; in a call that
            "running" has begun after "failed", still the reason for that.
        call: the number of the worker's last call of `fit`, `evaluate`, …
        in_call: 1 while the worker is in that call, 0 after the call.
        collectives_entered: how many collectives the worker has entered; 0 if it does not wait in
            a collective.
        python_collective: the number of the collective that Python waits for; 0 if a compiled
            function waits.
        waiting_seconds: for how many seconds the worker has been in a collective, or has waited
            for the agreed stop point; 0 if it does not wait.
        location: the line of the user's program at which the worker is, and the call that it is
            in.
        unreachable: while the worker waits, the workers that it could not connect to, and why; ""
            if it could connect to all, or has not tried.
        training: the number of the training that can be stopped; 0 if there is none.
        stop_requested: 1 if the worker knows that any worker was asked to stop that training.
        stop_points_passed: if `stop_requested` is 1, 1 plus the number of stop points that the
            worker has passed; otherwise 0. See `graceful_stop`. While `stop_requested` is 1, the
            worker passes no stop point before it has received the agreed one.
        stop_at: the number of the agreed stop point, from 1 on; 0 while it is not known.
        fits_without_strategy: how often the worker has called `fit` of a model that belongs to no
            strategy.
        calls: the last entries of the worker's `call_log`, as `call_log.to_send` returns them.
    """

    state: str = "starting"
    why: str = ""
    call: int = 0
    in_call: int = 0
    collectives_entered: int = 0
    python_collective: int = 0
    waiting_seconds: float = 0.0
    location: str = ""
    unreachable: str = ""
    training: int = 0
    stop_requested: int = 0
    stop_points_passed: int = 0
    stop_at: int = 0
    fits_without_strategy: int = 0
    calls: str = ""

    @property
    def urgent_fields(self) -> tuple:
        """The fields whose changes are sent to the other workers at once."""
        return (
            self.state if self.state not in ("starting", "running") else "",
            self.stop_requested,
            self.stop_points_passed,
            self.stop_at,
            self.fits_without_strategy,
        )

    @classmethod
    def from_fields(cls, fields: Any) -> Status:
        """Return the status in a dict from another process.

        Raises:
            One of `INVALID`: if it is no dict, or the dict is not valid.
        """
        shown: dict[str, Any] = {}
        for name, value in fields.items():
            kind, given = _TYPES[name], type(value)
            is_kind = given is kind or (kind is float and given is int)
            if not is_kind or (kind is not str and not 0 <= value <= _LARGEST_NUMBER):  # nor is NaN
                raise ValueError("not a status")
            shown[name] = printable(value, _LONGEST_TEXT) if kind is str else value
        if shown.get("state", "starting") not in _STATES:
            raise ValueError("not a state")
        return cls(**shown)


INVALID = AttributeError, KeyError, TypeError, ValueError  # the errors of received data
_TYPES = {field.name: type(field.default) for field in dataclasses.fields(Status)}


@dataclasses.dataclass(frozen=True)
class CollectiveError:
    """What an error of TensorFlow reports about collectives; another worker may be the cause.

    Attributes:
        line: why the collectives ended; "" if the error is not about collectives.
        workers: the names of the workers that the error names, such as "worker 1".
        differ: whether the error shows that workers have made different calls.
    """

    line: str = ""
    workers: tuple[str, ...] = ()
    differ: bool = False


# Returns the `CollectiveError` in an exception, or None if no other worker has caused it.
CollectiveErrorOf = Callable[[BaseException], CollectiveError | None]


def broken(
    cluster: Cluster,
    error: CollectiveError,
    unreachable: str,
    statuses: Mapping[int, Status],
) -> str:
    """Return why this worker cannot continue if only TensorFlow reports a reason.

    Args:
        cluster: the `Cluster`.
        error: what TensorFlow reports.
        unreachable: the `Status.unreachable` of this worker.
        statuses: dict from ranks to `Status`.
    """
    if error.differ:
        return (
            f"The workers have not made the same calls: {_call_sites(cluster, statuses)}. "
            f"TensorFlow reports: {error.line}. {_THE_SAME_PROGRAM} {see('TFA-503')}"
        )
    own, others = cluster.rank, range(len(cluster.names))
    blamed = [rank for rank in others if rank != own and cluster.names[rank] in error.workers]
    if len(others) == 2:
        blamed = [1 - own]
    if unreachable:
        what = f"{cluster.named([own])} cannot reach {unreachable}, and TensorFlow raised"
    else:
        between = cluster.named(blamed) if blamed else "others"
        what = f"the connection between {cluster.named([own])} and {between} broke"
    return f"{what}: {error.line}. {RECOVERY_ADVICE} {see('TFA-505')}"


def different_calls(
    cluster: Cluster,
    statuses: Mapping[int, Status],
    first_difference: Callable[[str], tuple[Entry, Entry] | None],
) -> str | None:
    """Return which calls differ between this worker and another worker; None if none differs.

    Args:
        cluster: the `Cluster`.
        statuses: dict from ranks to `Status`, including this worker.
        first_difference: `call_log.first_difference`.
    """
    if any(status.state not in ("starting", "running") for status in statuses.values()):
        return None  # a worker that has ended or failed explains why the entries differ
    compared = set()
    for rank in sorted(set(statuses) - {cluster.rank}):
        if (calls := statuses[rank].calls) in compared:
            continue
        compared.add(calls)
        found = first_difference(calls)
        if found is None:
            continue
        entries = dict(zip((cluster.rank, rank), found, strict=True))
        each = [
            f"{cluster.named([one])} {entries[one].name}{_at(statuses[one])}"
            for one in sorted(entries)
        ]
        return (
            f"The workers have not made the same calls: {', but '.join(each)}. "
            f"{_THE_SAME_PROGRAM} {see('TFA-503')}"
        )
    return None


def _at(status: Status) -> str:
    where = f" (at {status.location})" if status.location else ""
    return where + _failed_before(status)


def _failed_before(status: Status) -> str:
    """Return the exception of the last call, which the script has caught; "" without one."""
    return f", after its last call failed: {status.why}" if status.why else ""


def failure(
    cluster: Cluster,
    statuses: Mapping[int, Status],
    collective_timeout: float,
    is_broken: bool = False,
) -> str | None:
    """Return why this worker cannot continue; None if it can.

    Args:
        cluster: the `Cluster`.
        statuses: dict from ranks to `Status`, including this worker.
        collective_timeout: seconds to wait in a collective for workers that are alive.
        is_broken: whether a collective of this worker has raised an error. TensorFlow may detect
            the end of another worker before this worker has waited for `GRACE`.
    """
    own = statuses[cluster.rank]
    others = {rank: status for rank, status in statuses.items() if rank != cluster.rank}
    needs_others = own.in_call or own.waiting_seconds or own.state == "starting"
    then = f"{RECOVERY_ADVICE} {see('TFA-501')}"
    for rank, status in others.items() if needs_others else ():
        if status.state == "lost":
            return f"{cluster.named([rank])} was lost: {status.why}. {then}"
    if own.waiting_seconds >= GRACE or is_broken:
        for rank, status in others.items():
            if status.state == "failed" and own.in_call and status.call == own.call:
                return f"{cluster.named([rank])} failed: {status.why}. {_CORRECT_IT} {then}"
            if status.state == "ended" and status.why:
                return f"{cluster.named([rank])} has ended: {status.why}. {_CORRECT_IT} {then}"
            if status.state == "ended":
                return (
                    f"{cluster.named([rank])} has ended, and {cluster.names[cluster.rank]} waits "
                    "for it. All workers have to make the same calls. Correct the program, and "
                    f"start all workers again. {see('TFA-504')}"
                )
    for rank, status in others.items() if needs_others else ():
        if status.state == "aborted":  # checked last, because that worker may have known less
            is_about_this_one = status.why.startswith(cluster.named([cluster.rank]))
            who = f"{cluster.named([rank])} cannot continue: " if is_about_this_one else ""
            return who + status.why
    is_complete = len(statuses) == len(cluster.names)
    if (
        is_complete
        and not _unreachable_peers(cluster, statuses)
        and _are_in_different_collectives(statuses)
    ):
        return _wait_for_each_other(cluster, statuses)
    if is_complete and all(
        status.waiting_seconds >= ALL_WAITING_GRACE for status in statuses.values()
    ):
        if cut := _unreachable_peers(cluster, statuses):
            is_long = own.waiting_seconds >= min(collective_timeout, UNREACHABLE_SECONDS)
            return f"{cut}. {RECOVERY_ADVICE} {see('TFA-505')}" if is_long else None
        differ = len({status.python_collective for status in statuses.values()}) > 1
        if own.waiting_seconds >= min(
            collective_timeout, MISMATCH_SECONDS if differ else DEADLOCK_SECONDS
        ):
            return _wait_for_each_other(cluster, statuses)
    if own.waiting_seconds >= collective_timeout:
        return (
            f"{cluster.names[cluster.rank]} has waited {own.waiting_seconds:.0f} s for "
            f"{_who_is_awaited(cluster, statuses)}. All workers have to make the same calls. If a "
            "worker needs more time, wait longer with AdasumMirroredStrategy(timeout=SECONDS). "
            f"{see('TFA-502')}"
        )
    return None


def _are_in_different_collectives(statuses: Mapping[int, Status]) -> bool:
    """Return whether all workers wait in different collectives that have the same number.

    The collectives are different if the workers are in different calls, or if some workers wait in
    Python and others in a compiled function.
    """
    waiting = [
        status for status in statuses.values() if status.waiting_seconds >= DIFFERENT_CALLS_GRACE
    ]
    return (
        len(waiting) == len(statuses)
        and len({status.collectives_entered for status in waiting}) == 1
        and len({(status.call, status.python_collective) for status in waiting}) > 1
    )


def _wait_for_each_other(cluster: Cluster, statuses: Mapping[int, Status]) -> str:
    return (
        "The workers wait for each other, because they have not made the same calls: "
        f"{_call_sites(cluster, statuses)}. {_THE_SAME_PROGRAM} {see('TFA-503')}"
    )


def _call_sites(cluster: Cluster, statuses: Mapping[int, Status]) -> str:
    sites = [
        f"{cluster.names[rank]} is at {status.location}{_failed_before(status)}"
        for rank, status in sorted(statuses.items())
    ]
    return listed(sites)


def waiting_message(cluster: Cluster, statuses: Mapping[int, Status]) -> str:
    """Return the line that this worker prints while it waits."""
    own = statuses[cluster.rank]
    cut = _unreachable_peers(cluster, statuses)
    why = f" ({cut})" if cut else ""
    awaited = _who_is_awaited(cluster, statuses)
    return (
        f"{cluster.names[cluster.rank]} has waited {own.waiting_seconds:.0f} s for {awaited}{why}"
    )


def _unreachable_peers(cluster: Cluster, statuses: Mapping[int, Status]) -> str:
    """Return which workers, at most three, report that they cannot reach others; "" if none."""
    cuts = [
        f"{cluster.named([rank])} cannot reach {status.unreachable}"
        for rank, status in sorted(statuses.items())
        if status.unreachable
    ]
    return "; ".join([*cuts[:3], "…"] if len(cuts) > 3 else cuts)


def _who_is_awaited(cluster: Cluster, statuses: Mapping[int, Status]) -> str:
    own = statuses[cluster.rank]
    awaited = [
        rank
        for rank, status in sorted(statuses.items())
        if rank != cluster.rank
        and (not status.waiting_seconds or status.collectives_entered < own.collectives_entered)
    ]
    if not awaited:
        return "the others, which are waiting as well"
    names = [
        cluster.named([rank]) + (f", which is at {at}" if (at := statuses[rank].location) else "")
        for rank in awaited
    ]
    return listed(names)
