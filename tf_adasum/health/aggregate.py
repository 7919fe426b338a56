"""The statuses of all workers as one short value, which worker 0 sends to the others.

Workers with equal statuses form a group. If the value is too long, groups that decide less are left
out: worker 0 has all statuses, so it finds every reason to stop, and sends it. Standard library
only.
"""

import dataclasses
import json
import operator
from collections.abc import Mapping
from typing import Any

from tf_adasum.health.diagnosis import Status

LONGEST = 60_000  # characters of the value within a message
_DEFAULTS = {each.name: each.default for each in dataclasses.fields(Status)}
# `waiting_seconds` differ within a group. Only worker 0's `calls` are compared by other workers.
_NAMES = [name for name in _DEFAULTS if name not in ("waiting_seconds", "calls")]
_fields_of = operator.attrgetter(*_NAMES)


def aggregated(statuses: Mapping[int, Status], longest: int = LONGEST) -> list[list[Any]]:
    """Return groups of equal statuses.

    Args:
        statuses: dict from ranks to `Status`.
        longest: the largest number of characters.

    Returns:
        A list of groups. Each group is a list of two dicts: the fields of its statuses that are
        not the default, and the ranks by their `waiting_seconds`, such as
        ``[{"state": "running"}, {"1.5": [0, 1, 7]}]``.
    """
    groups: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    for rank in sorted(statuses):
        waits = groups.setdefault(_fields_of(statuses[rank]), {})
        waits.setdefault(f"{statuses[rank].waiting_seconds:.1f}", []).append(rank)
    found: list[list[Any]] = []
    for values, waits in sorted(groups.items(), key=_importance):
        fields = {
            name: value
            for name, value in zip(_NAMES, values, strict=True)
            if value != _DEFAULTS[name]
        }
        group = [fields, waits]
        size = len(json.dumps(json.dumps(group)))
        if size <= longest:
            longest -= size
            found.append(group)
    return found


def _importance(group: tuple[tuple[Any, ...], dict[str, list[int]]]) -> tuple[bool, float, int]:
    """Return a key by which groups are sorted: first those that may end this training."""
    values, waits = group
    state = values[_NAMES.index("state")]
    return state in ("starting", "running"), -max(map(float, waits)), -len(waits)


def message_with(statuses: Mapping[int, Status]) -> dict[str, Any]:
    """Return the message that worker 0 sends; `statuses` has worker 0's own status."""
    return {"statuses": aggregated(statuses), "calls": statuses[0].calls}


def statuses_in(message: Any, sender: int, workers: int) -> dict[int, Status]:
    """Return the statuses in a message, by their ranks.

    Args:
        message: the message, which another process has sent.
        sender: the rank of the sender. Only worker 0 sends the statuses of other workers.
        workers: the number of workers.

    Raises:
        One of `diagnosis.INVALID`: if the message is not valid.
    """
    if sender > 0:
        return {sender: Status.from_fields(message["status"])}
    found: dict[int, Status] = {}
    for fields, waits in message["statuses"]:
        for seconds, ranks in waits.items():
            status = Status.from_fields({**fields, "waiting_seconds": float(seconds)})
            if any(type(n) is not int or not 0 <= n < workers for n in ranks):
                raise ValueError("not a rank")
            found.update(dict.fromkeys(ranks, status))
    if 0 in found:
        found[0] = dataclasses.replace(found[0], calls="".join(message.get("calls", "")))
    return found
