"""Find the worker that failed first, and why, from exit statuses and the last lines on stderr.

Uses only the standard library.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Sequence

EXIT_TIMEOUT = 124  # as coreutils' `timeout`
EXIT_USAGE = 2  # as argparse and the shells: the same arguments will fail again
EXIT_STOP_REQUESTED = 75  # EX_TEMPFAIL: the workers were asked to end, and the next start resumes

MEANINGS = {
    signal.SIGKILL: "killed: possibly out of memory",
    signal.SIGSEGV: "crashed: access to memory that the program does not own",
    signal.SIGBUS: "crashed: memory was not available, possibly because /dev/shm is full",
    signal.SIGABRT: "crashed: a check in the program failed",
    signal.SIGILL: "crashed: this CPU does not have an instruction of the program",
    signal.SIGFPE: "crashed: invalid arithmetic",
    signal.SIGTERM: "stopped by another program",
    signal.SIGINT: "interrupted",
    signal.SIGXCPU: "out of CPU time",
}
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_TRACEBACK = "Traceback (most recent call last):"
_GOES_ON = ("During handling of the above exception", "The above exception was the direct cause")
_BECAUSE_OF_ANOTHER = "WorkerLostError"
_MESSAGE = "tf_adasum: "
# `cluster.start_timeout` prints this text before it kills its worker.
_START_TIMEOUT_TEXT = " s in TensorFlow's start-up"
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NAMED = re.compile(r"worker (\d{1,9}) \(")
_LONGEST_LINE = 400
_LONGEST_ERROR = 10_000  # large, because an error ends with the advice and the code
_MOST_LINES = 400  # of a traceback
_MOST_NAMES = 8


class StderrTail:
    """The last lines that a worker printed on stderr.

    Attributes:
        error: the line of the last traceback that names the exception; "" without a traceback.
        line: the last line that is not empty.
        lost: the last message of a `WorkerLostError`, even if the script caught it; "" without one.
    """

    def __init__(self) -> None:
        self.error = self.line = self.lost = ""
        self._traceback: list[str] = []
        self._is_inside = False  # whether the previous line belongs to a traceback's frames
        self._is_ignored = False  # whether the traceback is of an exception that Python ignores

    def read(self, line: str) -> None:
        """Take in the next line of stderr."""
        text = "".join(each for each in _COLOURS.sub("", line.rstrip()) if each.isprintable())
        is_begin = text == _TRACEBACK
        if is_begin:
            self._is_inside = True
            self._is_ignored = self.line.startswith("Exception ignored")
            if not self._is_ignored and not self.line.startswith(_GOES_ON):
                self._traceback = []
        elif (
            self._is_inside
            and text.strip("^~ ")
            and not text[0].isspace()
            and not text.startswith(_MESSAGE)  # another thread has printed it
        ):
            self._is_inside = False
            if not self._is_ignored:
                self.error = _cut(text, _LONGEST_ERROR)
        if (is_begin or self._traceback) and not self._is_ignored:
            self._traceback = [*self._traceback, text][:_MOST_LINES]
        if text:
            self.line = _cut(text, _LONGEST_LINE)

    @property
    def traceback(self) -> str:
        """The last traceback, with the exceptions that caused it and the lines after it, or ""."""
        return "\n".join(self._traceback).strip()


@dataclasses.dataclass(frozen=True)
class ProcessExit:
    """Describes how a worker ended.

    Attributes:
        rank: the rank of the worker.
        code: the exit status, or minus the number of the signal that ended the worker.
        stderr_tail: the worker's last lines on stderr; None if stderr was not read.
        log: the path of the file with the worker's output; "" without a file.
        is_stopped: whether the launcher had begun to stop the worker.
        hides_loss: whether the worker exited with status 0 although it had lost another worker.
            Then its training is not complete, and `code` is 1.
    """

    rank: int
    code: int
    stderr_tail: StderrTail | None = None
    log: str = ""
    is_stopped: bool = False
    hides_loss: bool = False

    @property
    def cause(self) -> str:
        """The exit status or the signal, and its meaning."""
        if self.hides_loss:
            return "exit status 0 although it had lost a worker"
        if self.code >= 0:
            return f"exit status {self.code}"
        meaning = None if self._timed_out_at_start else MEANINGS.get(-self.code)
        return signal_name(-self.code) + (f" ({meaning})" if meaning else "")

    @property
    def error(self) -> str:
        """The exception that ended the worker, or its last line; "" if this line would mislead."""
        if self.stderr_tail is None:
            return ""
        error = self.stderr_tail.error or self.stderr_tail.lost
        if self.is_stopped:
            return error
        if self.code > 0:
            return error or self.stderr_tail.line
        return self.stderr_tail.line if -self.code in _CRASHES or self._timed_out_at_start else ""

    @property
    def is_because_of_another(self) -> bool:
        """Whether the error is that another worker ended."""
        return _BECAUSE_OF_ANOTHER in self.error.partition(":")[0] or self._timed_out_at_start

    @property
    def _timed_out_at_start(self) -> bool:
        return (
            self.code < 0
            and self.stderr_tail is not None
            and _START_TIMEOUT_TEXT in self.stderr_tail.line
        )


def signal_name(number: int) -> str:
    """Return the name of a signal.

    Example:
        >>> signal_name(9), signal_name(40)
        ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def first_failure(ends: Sequence[ProcessExit]) -> ProcessExit:
    """Return the `ProcessExit` of the worker whose failure made the other workers end.

    This is the worker that ended first, unless it ended because of another worker. In that case the
    order is misleading: a failed worker can take longer to end than the workers that it informed.

    Args:
        ends: one `ProcessExit` for each worker of this machine, in the order of their ends. At
            least one worker has failed.
    """
    failed = [end for end in ends if end.code]
    # Status 75 means that the worker was asked to end, and has made its backup.
    first = next((end for end in failed if end.code != EXIT_STOP_REQUESTED), failed[0])
    if not first.is_because_of_another:
        return first
    named = {int(rank) for rank in _NAMED.findall(first.error)}
    others = [end for end in ends if end.code and not end.is_because_of_another]
    of_named = [end for end in others if end.rank in named and (end.error or not end.is_stopped)]
    by_themselves = [end for end in others if not end.is_stopped]
    return (of_named or by_themselves or [first])[0]


def own_failures(ends: Sequence[ProcessExit]) -> list[ProcessExit]:
    """Return the workers that failed with an exception, but not because of another worker.

    Args:
        ends: as for `first_failure`, but none of the workers has to have failed.
    """
    return [
        end
        for end in ends
        if end.code > 0 and end.stderr_tail and end.stderr_tail.error
        if not end.is_because_of_another
    ]


def summary(ends: Sequence[ProcessExit]) -> list[str]:
    """Return lines that report which worker failed first, why, and which workers then ended.

    Args:
        ends: as for `first_failure`.
    """
    first = first_failure(ends)
    error = f": {first.error}" if first.error else ""
    cause = "" if first.is_stopped else f", with {first.cause}"
    if first.is_because_of_another:
        lines = [f"worker {first.rank} ended because of another worker{cause}{error}"]
    else:
        lines = [f"worker {first.rank} failed first{cause}{error}"]
    others = [end.rank for end in ends if end is not first and (end.code or end.is_stopped)]
    if others:
        lines.append(f"ended because of it: {in_words(sorted(others))}")
    if first.log:
        lines.append(f"the output of worker {first.rank} is in {first.log}")
    return lines


def in_words(ranks: Sequence[int]) -> str:
    """Return a text that names the first few workers: "workers 0, 1 and 6 more"."""
    shown = ", ".join(map(str, ranks[:_MOST_NAMES]))
    more = len(ranks) - _MOST_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return f"{'worker' if len(ranks) == 1 else 'workers'} {shown}{rest}"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 2] + " …"
