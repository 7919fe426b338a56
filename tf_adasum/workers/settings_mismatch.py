"""Writes the error message if the settings of a call differ between workers.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_adasum.errors import see


def difference(call: str, settings: Sequence[Mapping[str, str]]) -> str:
    """Return a message with the first setting that differs, and the value on each worker.

    Args:
        call: the call, such as "fit".
        settings: for each worker, in rank order, a dict from the names of settings to values.
    """
    names = dict.fromkeys(name for own in settings for name in own)
    differing = [name for name in names if len({own.get(name) for own in settings}) > 1]
    first = differing[0]
    ranks_of: dict[str, list[int]] = {}
    for rank, own in enumerate(settings):
        ranks_of.setdefault(own.get(first, "not set"), []).append(rank)
    received = "; ".join(f"{named(ranks)}: {value}" for value, ranks in ranks_of.items())
    others = ", ".join(differing[1:4]) + (", …" if len(differing) > 4 else "")
    more = f" Other settings that differ: {others}." if others else ""
    return (
        f"The workers call {call} with different settings. {first} is not the same on all workers: "
        f"{received}.{more} Run the same program with the same settings on all workers. "
        f"{see('TFA-511')}"
    )


def named(ranks: Sequence[int]) -> str:
    """Return "worker 0" or "workers 0, 2"."""
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
