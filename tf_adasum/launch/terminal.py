"""The colors and aligned prefixes of the launcher's output on a terminal.

Output is plain text if it does not go to a terminal, or if ``NO_COLOR`` or ``TERM=dumb`` is set.
"""

from __future__ import annotations

import os

PROGRAM = "tf-adasum-launch"  # the prefix of a message that no worker wrote

# ECMA-48's numbers of the styles: the colors of workers 0, 1, …; with more workers they repeat.
_COLORS = (36, 32, 35, 33, 34, 96, 92)
_BOLD = 1


def prefix_of_worker(rank: int, num_workers: int, descriptor: int, always: bool = False) -> bytes:
    """Return the prefix of each line of a worker; it is empty if there is only one worker.

    Args:
        rank: the rank of the worker.
        num_workers: the number of workers on all machines.
        descriptor: 1 or 2.
        always: whether a single worker has a prefix. Defaults to False.
    """
    if num_workers == 1 and not always:
        return b""
    width = len(f"[worker {num_workers - 1}]")
    return _colored(f"[worker {rank}]", _COLORS[rank % len(_COLORS)], width, descriptor)


def prefix_of_launcher(descriptor: int) -> bytes:
    """Return the prefix of each message of the launcher."""
    return _colored(f"{PROGRAM}:", _BOLD, 0, descriptor)


def _colored(text: str, style: int, width: int, descriptor: int) -> bytes:
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    if is_plain or not os.isatty(descriptor):
        return f"{text} ".encode()
    return f"\x1b[{style}m{text}\x1b[0m{' ' * (width - len(text))} ".encode()
