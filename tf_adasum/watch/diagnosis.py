"""What a worker makes of what it knows about the others: pure functions of their statuses.

TensorFlow notices some of this after ten seconds, and waits without end where a worker is alive but
never comes.
"""

import dataclasses

# Seconds for which all workers have to be in collectives that do not end, until they are taken for
# different ones. They may be a single one of many gigabytes.
ALL_WAIT = 120.0

# Seconds after which a worker that waits for one that has ended or failed gives up: the other may
# have taken part in the collective before it ended.
GRACE = 2.0

# The same where all wait: what they say of themselves is not of the same moment.
LONG = 10.0

WHAT_TO_DO = (
    "Restart all workers; with callbacks.BackupAndRestore they go on where the last backup was made"
    " (tf-adasum-launch --max-restarts does it by itself)."
)


@dataclasses.dataclass(frozen=True)
class Status:
    """What a worker says of itself, or what is said of one that does not speak any more.

    Attributes:
        state: "starting", "running", "failed" (an exception left `fit`), "ended", "lost", or "gave
            up" (it cannot go on).
        why: of the last four states: one line.
        call: number of its last call of `fit`, `evaluate`, …
        inside: 1 while it is in that call, 0 after it.
        entered: how many collectives it has entered, while it waits in one.
        of_python: number of the collective that Python waits for, 0 for one in a compiled function.
        waits: for how many seconds it has been in one; 0 if it is in none.
        at: the line of the program it is at.
    """

    state: str = "starting"
    why: str = ""
    call: int = 0
    inside: int = 0
    entered: int = 0
    of_python: int = 0
    waits: float = 0.0
    at: str = ""

    @classmethod
    def of(cls, fields):
        """Returns the status that a dict from another process describes; None if it is none."""
        if not isinstance(fields, dict):
            return None
        types = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        for name, value in fields.items():
            if name not in types or isinstance(value, bool):
                return None
            if not isinstance(value, (int, float) if types[name] is float else types[name]):
                return None
        return cls(**fields)


def failure(cluster, statuses, patience):
    """Returns why this worker cannot go on, None if it can.

    Args:
        cluster: the `Cluster`.
        statuses: dict from ranks to `Status`, this worker's among them.
        patience: seconds to wait in a collective for workers that are alive.
    """
    own = statuses[cluster.rank]
    others = {rank: status for rank, status in statuses.items() if rank != cluster.rank}
    needs_others = own.inside or own.waits or own.state == "starting"
    for rank, status in others.items() if needs_others else ():
        if status.state == "lost":
            return f"{cluster.named([rank])} was lost: {status.why}. {WHAT_TO_DO}"
        if status.state == "gave up":
            return status.why
    if own.waits >= GRACE:
        for rank, status in others.items():
            if status.state == "failed" and own.inside and status.call == own.call:
                return f"{cluster.named([rank])} failed: {status.why}. {WHAT_TO_DO}"
            if status.state == "ended" and status.why:
                return f"{cluster.named([rank])} has ended: {status.why}. {WHAT_TO_DO}"
            if status.state == "ended":
                return (
                    f"{cluster.named([rank])} has ended, and {cluster.names[cluster.rank]} waits "
                    f"for it. All workers have to make the same calls. {WHAT_TO_DO}"
                )
    of_all = statuses.values()
    if len(statuses) == len(cluster.names) and all(status.waits >= LONG for status in of_all):
        differ = len({status.of_python for status in of_all}) > 1
        if differ or own.waits >= min(patience, ALL_WAIT):
            places = [f"{cluster.names[r]} is at {statuses[r].at}" for r in sorted(statuses)]
            return (
                "The workers wait for each other, because they have not made the same calls: "
                f"{', '.join(places)}. All workers have to run the same program, with the same "
                "callbacks and settings. Restart all of them."
            )
    if own.waits >= patience:
        return (
            f"{cluster.names[cluster.rank]} has waited {own.waits:.0f} s for "
            f"{_who_is_awaited(cluster, statuses)}. All workers have to make the same calls; "
            "where one takes that long, wait longer with "
            "tf.distribute.experimental.CommunicationOptions(timeout_seconds=...)."
        )
    return None


def notice(cluster, statuses):
    """Returns what to tell a user who is waiting."""
    own = statuses[cluster.rank]
    return f"waiting for {own.waits:.0f} s for {_who_is_awaited(cluster, statuses)}"


def _who_is_awaited(cluster, statuses):
    own = statuses[cluster.rank]
    awaited = [
        rank
        for rank, status in sorted(statuses.items())
        if rank != cluster.rank and (not status.waits or status.entered < own.entered)
    ]
    if not awaited:
        return "the others, which wait, too"
    return ", ".join(
        cluster.named([rank]) + (f", which is at {at}" if (at := statuses[rank].at) else "")
        for rank in awaited
    )
