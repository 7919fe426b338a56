"""What the launcher's output looks like on a terminal: colors and aligned prefixes.

The package `rich`, which Keras 3 requires, renders them. Output is plain text without `rich`, if it
does not go to a terminal, with ``NO_COLOR``, and with ``TERM=dumb``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.console

PROGRAM = "tf-adasum-launch"  # the prefix of a message that no worker wrote

# Of worker 0, 1, …; then from the beginning.
_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")


def screen(descriptor: int) -> rich.console.Console | None:
    """Return what draws on the terminal of a file descriptor.

    Args:
        descriptor: 1 or 2.

    Returns:
        None if it is no terminal, if the terminal cannot move its cursor, or without `rich`.
    """
    if not os.isatty(descriptor):
        return None
    try:
        import rich.console
    except ImportError:
        return None
    file = open(descriptor, "w", encoding="utf-8", errors="replace", closefd=False)
    made = rich.console.Console(file=file, highlight=False)
    return None if made.is_dumb_terminal else made


def prefix_of_worker(rank: int, num_workers: int, descriptor: int) -> bytes:
    """Return what each line of a worker begins with; nothing if there is one worker.

    Args:
        rank: the worker's.
        num_workers: the number of workers on all machines.
        descriptor: 1 or 2.
    """
    if num_workers == 1:
        return b""
    width = len(f"[worker {num_workers - 1}]")
    return _colored(f"[worker {rank}]", _COLORS[rank % len(_COLORS)], width, descriptor)


def prefix_of_launcher(descriptor: int) -> bytes:
    """Return what each message of the launcher begins with."""
    return _colored(f"{PROGRAM}:", "bold", 0, descriptor)


def _colored(text, style, width, descriptor):
    drawing = screen(descriptor)
    if drawing is None or drawing.no_color:
        return f"{text} ".encode()
    from rich.style import Style

    return f"{Style.parse(style).render(text)}{' ' * (width - len(text))} ".encode()
