"""Finds the first node in Slurm's lists of nodes, such as ``n[2,10]``. Standard library only."""

from __future__ import annotations

import re

_RANGES = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
_NODE = rf"(?:[^][,\s]|{_RANGES})+"
_LIST = re.compile(rf"({_NODE})(?:,{_NODE})*", re.ASCII)


def first_node(text: str) -> str:
    """Return the first node of a list, in Slurm's order.

    Raises:
        ValueError: if the text is not a list of nodes.

    Example:
        >>> first_node("gpu[009-010,7]-ib,login1")
        'gpu009-ib'
    """
    found = _LIST.fullmatch(text)
    if not found:
        received = text if len(text) < 1000 else f"{text[:1000]}..."
        raise ValueError(
            f"a list of nodes must look like 'n[1-3,7],login1'. Received: {received!r}"
        )
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", found[1])
