"""Draw the table of ``--status`` below the output on a terminal."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_adasum.health import status_file
from tf_adasum.launch import terminal
from tf_adasum.launch.output import Console, stopping_if_lost
from tf_adasum.launch.status import Board, Row

if TYPE_CHECKING:
    import rich.console
    import rich.table

_SECONDS_BETWEEN_BARS = 0.2

_STYLES = {
    "starting": "dim",
    "training": "green",
    "waiting": "yellow",
    "silent": "red",
    "failed": "bold red",
}


class LiveConsole(Console):
    """A console on a terminal that keeps a table below the output.

    Args:
        events: the event queue of the job.
        screen: the console of `rich`, which draws on the terminal.
    """

    def __init__(self, events: queue.SimpleQueue, screen: rich.console.Console):
        super().__init__(events)
        self._screen = screen
        self._live, self._table, self._drawn_at = None, [], 0.0
        self._bar, self._of_bar = None, None  # a line that is not complete, and its writer

    def follow(self, board: Board, ended: threading.Event) -> None:
        """Draw the table every second until `ended` is set; the last table stays visible."""
        from rich.live import Live

        with self._lock, stopping_if_lost(self):
            self._render(board.rows())
            self._live = Live(
                console=self._screen,
                get_renderable=self._drawing,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        while not ended.wait(status_file.seconds_to_next(0.5)):
            self._draw(board)
        self._draw(board)
        with self._lock, stopping_if_lost(self):
            self._live, live = None, self._live
            live.stop()

    def _render(self, rows):
        # Rendered once, and used for all lines of output until the next status.
        self._table = list(self._screen.render(table(rows)))

    def _draw(self, board):
        rows = board.rows()
        with self._lock, stopping_if_lost(self):
            self._render(rows)
            self._live.refresh()

    def _drawing(self):
        from rich.console import Group
        from rich.segment import Segments

        rows = Segments(self._table)
        return rows if self._bar is None else Group(self._bar, rows)

    def _write(self, descriptor, prefix, piece, source=None):
        if self._live is None:
            super()._write(descriptor, prefix, piece, source)
            return
        if self._lost:
            return
        from rich.text import Text

        line = Text.from_ansi((prefix + piece).decode(errors="replace").replace("\b", "").rstrip())
        with stopping_if_lost(self):
            if piece.endswith(b"\r"):
                self._bar, self._of_bar = line, (descriptor, prefix)
                if time.monotonic() > self._drawn_at + _SECONDS_BETWEEN_BARS:
                    self._drawn_at = time.monotonic()
                    self._live.refresh()
                return
            if self._of_bar == (descriptor, prefix):
                self._bar = self._of_bar = None
                self._live.refresh()  # because `print` draws the last drawing again
            self._screen.print(line, soft_wrap=True)


def table(rows: Sequence[Row]) -> rich.table.Table:
    """Return a table with a row for each worker."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("worker", "host", "step", "steps/s", "behind", "state"):
        made.add_column(name, justify="left" if name in ("host", "state") else "right")
    for row in rows:
        made.add_row(
            str(row.rank),
            row.host,
            "" if row.step is None else str(row.step),
            "" if row.rate is None else f"{row.rate:.1f}",
            "" if row.behind is None else str(row.behind),
            Text(" ".join(filter(None, [row.state, row.more])), _STYLES.get(row.state, "")),
        )
    return made


def console(events: queue.SimpleQueue, is_live: bool) -> Console:
    """Return the console that writes the output of a job.

    Args:
        events: the event queue of the job.
        is_live: whether to show a table if stdout and stderr are terminals.
    """
    screen = terminal.screen(1) if is_live and terminal.screen(2) else None
    return Console(events) if screen is None else LiveConsole(events, screen)
