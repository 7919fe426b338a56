"""Find the worker that failed first, and why, from exit statuses and the workers' error files.

The reason of a worker without an error file (`cluster.error_file`) is in its last lines on stderr.
Uses only the standard library.
"""

import dataclasses
import signal
import time
from collections.abc import Sequence

from tf_adasum.cluster.error_file import Report
from tf_adasum.cluster.tasks import listed

EXIT_TIMEOUT = 124  # as coreutils' `timeout`
EXIT_USAGE = 2  # as argparse and the shells: the same arguments will fail again
EXIT_STOP_REQUESTED = 75  # EX_TEMPFAIL: the workers were asked to end, and the next start resumes

MEANINGS = {
    signal.SIGKILL: "killed: possibly out of memory",
    signal.SIGSEGV: "crashed: access to memory that the program does not own",
    signal.SIGBUS: "crashed: memory was not available, possibly because /dev/shm is full",
    signal.SIGABRT: "crashed: a check in the program failed",
    signal.SIGILL: "crashed: this CPU does not have an instruction of the program",
    signal.SIGTERM: "stopped by another program",
}
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL)
_TRACEBACK = "Traceback (most recent call last):"
_NEEDS_INPUT = ("EOFError: EOF when reading a line", "bdb.BdbQuit")
_LONGEST_LINE = 10_000  # large, because an error ends with the advice and the code


class StderrTail:
    """The last lines that a worker printed on stderr.

    Attributes:
        error: the line of the last traceback that names the exception; "" without a traceback.
        line: the last line that is not empty.
    """

    def __init__(self) -> None:
        self.error = self.line = ""
        self._is_inside = False  # whether the previous line belongs to a traceback's frames

    def read(self, line: str) -> None:
        """Take in the next line of stderr."""
        text = "".join(each for each in line.rstrip() if each.isprintable())[:_LONGEST_LINE]
        if text == _TRACEBACK:
            self._is_inside = not self.line.startswith("Exception ignored")
        elif self._is_inside and text.strip("^~ ") and not text[0].isspace():
            if not text.startswith("tf_adasum: "):  # another thread has printed it
                self._is_inside, self.error = False, text
        if text:
            self.line = text


@dataclasses.dataclass(frozen=True)
class ProcessExit:
    """Describes how a worker ended.

    Attributes:
        rank: the rank of the worker.
        code: the exit status, or minus the number of the signal that ended the worker.
        stderr_tail: the worker's last lines on stderr; None if stderr was not read.
        log: the path of the file with the worker's output; "" without a file.
        is_stopped: whether the launcher had begun to stop the worker.
        report: what the worker has written to its error file; None if it has written nothing.
        ended_at: when the worker ended, by `time.time`. Defaults to now.
        hides_loss: whether the worker exited with status 0 although it had lost another worker.
            Then its training is not complete, and `code` is 1.
    """

    rank: int
    code: int
    stderr_tail: StderrTail | None = None
    log: str = ""
    is_stopped: bool = False
    report: Report | None = None
    ended_at: float = dataclasses.field(default_factory=time.time)
    hides_loss: bool = False

    @property
    def cause(self) -> str:
        """The exit status or the signal, and its meaning."""
        if self.hides_loss:
            return "exit status 0 although it had lost a worker"
        if self.code >= 0:
            return f"exit status {self.code}"
        meaning = None if self.is_because_of_another else MEANINGS.get(-self.code)
        return signal_name(-self.code) + (f" ({meaning})" if meaning else "")

    @property
    def error(self) -> str:
        """The exception that ended the worker, or its last line; "" if this line would mislead."""
        if self.report:
            return self.report.error
        if self.stderr_tail is None:
            return ""
        if self.code > 0:
            return self.stderr_tail.error or self.stderr_tail.line
        return self.stderr_tail.line if -self.code in _CRASHES else ""

    @property
    def is_because_of_another(self) -> bool:
        """Whether the error is that another worker ended."""
        return self.report is not None and self.report.is_because_of_another

    @property
    def failed_at(self) -> float:
        """When the worker failed, by `time.time`."""
        return self.report.time if self.report else self.ended_at


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

    This is the worker that failed first, and not because of another worker. A failed worker can
    take longer to end than the workers that it informed, and then the launcher stops it.

    Args:
        ends: one `ProcessExit` for each worker of this machine, in the order of their ends. At
            least one worker has failed.
    """
    failed = [end for end in ends if end.code]
    # Status 75 means that the worker was asked to end, and has made its backup.
    first = next((end for end in failed if end.code != EXIT_STOP_REQUESTED), failed[0])
    by_themselves = [
        end
        for end in failed
        if end.code != EXIT_STOP_REQUESTED and not end.is_because_of_another
        if not end.is_stopped or (end.report and end.failed_at <= first.ended_at)
    ]
    return min(by_themselves, key=lambda end: end.failed_at, default=first)


def own_failures(ends: Sequence[ProcessExit]) -> list[ProcessExit]:
    """Return the workers that failed with an exception, but not because of another worker.

    Args:
        ends: as for `first_failure`, but none of the workers has to have failed.
    """
    return [
        end
        for end in ends
        if end.code > 0 and end.stderr_tail and (end.stderr_tail.error or end.report)
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
    how = "ended because of another worker" if first.is_because_of_another else "failed first"
    lines = [f"worker {first.rank} {how}{cause}{error}"]
    if first.error.startswith(_NEEDS_INPUT):
        lines.append(
            "input() and breakpoint() need a terminal: start a single worker with -n 1, without "
            "--log-dir"
        )
    others = [end.rank for end in ends if end is not first and (end.code or end.is_stopped)]
    if others:
        lines.append(f"ended because of it: {in_words(sorted(others))}")
    if first.log:
        lines.append(f"the output of worker {first.rank} is in {first.log}")
    return lines


def in_words(ranks: Sequence[int]) -> str:
    """Return a text that names the first few workers: "workers 0, 1, and 6 more"."""
    return f"{'worker' if len(ranks) == 1 else 'workers'} {listed([*map(str, ranks)])}"
