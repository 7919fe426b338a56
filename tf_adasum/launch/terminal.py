"""The colors and aligned prefixes of the launcher's output on a terminal.

The package `rich`, which Keras 3 requires, renders them. Output is plain text if `rich` is not
installed, if the output does not go to a terminal, or if ``NO_COLOR`` or ``TERM=dumb`` is set.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.console

PROGRAM = "tf-adasum-launch"  # the prefix of a message that no worker wrote

# The colors of workers 0, 1, …; with more workers they repeat.
_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")


def screen(descriptor: int) -> rich.console.Console | None:
    """Return a console that draws on the terminal of a file descriptor.

    Args:
        descriptor: 1 or 2.

    Returns:
        The console; None if the descriptor is not a terminal, if the terminal cannot move its
        cursor, or if `rich` is not installed.
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
    return _colored(f"{PROGRAM}:", "bold", 0, descriptor)


def _colored(text, style, width, descriptor):
    drawing = screen(descriptor)
    if drawing is None or drawing.no_color:
        return f"{text} ".encode()
    from rich.style import Style

    return f"{Style.parse(style).render(text)}{' ' * (width - len(text))} ".encode()
