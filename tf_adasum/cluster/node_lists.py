"""Expands Slurm's lists of nodes, such as ``n[2,10]``, in Slurm's order. Standard library only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_RANGES = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
_NODE = rf"(?:[^][,\s]|{_RANGES})+"
_LIST = re.compile(rf"{_NODE}(?:,{_NODE})*", re.ASCII)
_NEXT_NODE = re.compile(_NODE, re.ASCII)
_BRACKET = re.compile(r"\[([^]]*)\]")
_MOST_DIGITS = 18


def nodes(text: str) -> Iterator[str]:
    """Yield the nodes of a list, one by one.

    Raises:
        ValueError: if the text is not a list of nodes. The error is raised before any node is
            yielded.

    Example:
        >>> list(nodes("gpu[009-010,7]-ib,login1"))
        ['gpu009-ib', 'gpu010-ib', 'gpu7-ib', 'login1']
    """
    if not _LIST.fullmatch(text) or not all(map(_counts_up, _BRACKET.findall(text))):
        received = text if len(text) < 1000 else f"{text[:1000]}..."
        raise ValueError(
            f"a list of nodes must look like 'n[1-3,7],login1'. Received: {received!r}"
        )
    return itertools.chain.from_iterable(map(_expanded, _NEXT_NODE.findall(text)))


def _counts_up(ranges: str) -> bool:
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        if len(max(first, last, key=len)) > _MOST_DIGITS or int(last or first) < int(first):
            return False
    return True


def _expanded(node: str) -> Iterator[str]:
    """Yield the nodes of one name with brackets; numbers in the last bracket change fastest."""
    before, bracket, rest = node.partition("[")
    if not bracket:
        yield node
        return
    ranges, _, after = rest.partition("]")
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expanded(after):
                yield f"{before}{number:0{len(first)}}{end}"
