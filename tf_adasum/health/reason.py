"""Describes an exception in one line, for the other workers. Standard library only."""

from __future__ import annotations

import re
from typing import Any

_LONGEST_REASON = 300


def reason_of(error: BaseException) -> str:
    """Return an exception as one line; for a `tf.errors.OpError`, the error that caused it."""
    if isinstance(error, SystemExit) and error.code in (0, None):
        return "SystemExit"
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)(:|$)", line)]
    own_lines = _lines_of_a_node(text) or lines
    if len(own_lines) > 1 and own_lines[0].startswith("Exception encountered when calling"):
        own_lines = own_lines[1:]  # Keras's first line names the layer, and the second the error
    line = causes[0] if causes else ": ".join([type(error).__name__, *own_lines[:1]])
    return line if len(line) <= _LONGEST_REASON else line[:_LONGEST_REASON] + "…"


def _lines_of_a_node(text: str) -> Any:
    """Return the lines of an error between its traceback and its node; [] without a node."""
    above, node, _ = text.partition("[[{{node")
    if not node:
        return []
    block = re.split(r"\n\s*\n|\bNode: .*\n", above.strip())[-1]
    return [line.strip() for line in block.splitlines() if "root error(s) found" not in line]
