"""Write the output of the workers line by line to the console, and to a file for each worker.

Uses only the standard library.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import queue
import select
import signal
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

from tf_adasum.launch import log_filter
from tf_adasum.launch.failures import StderrTail

PROGRAM = "tf-adasum-launch"  # the prefix of a message that no worker wrote

_SECONDS_AFTER_THE_END = 2.0  # for which the output of a worker's daemons is copied
_SECONDS_TO_SPEAK = 0.5  # how long the main thread waits until a message can be written
_LONGEST_LINE = 1 << 20  # bytes; a longer line is written as several lines


class Console:
    """Writes whole lines to stdout and stderr, one at a time."""

    def __init__(self, events: queue.SimpleQueue):
        self._events = events
        self._lock = threading.Lock()
        self._messages: collections.deque[bytes] = collections.deque()  # not written yet
        self._redrawn: tuple[int, Any] | None = None  # the writer whose piece ended in "\r"
        self._lost = False

    def write(self, descriptor: int, prefix: bytes, piece: bytes, source: Any = None) -> None:
        """Write one piece of output. If the output is closed, ask the job to stop.

        Args:
            descriptor: 1 or 2.
            prefix: the beginning of the line.
            piece: the rest of the line, or one state of a line that is redrawn.
            source: the writer of the piece. Defaults to None: `prefix` identifies the writer.
        """
        with self._lock:
            self._write(descriptor, prefix, piece, source)
            self._write_messages(None)

    def say(self, text: str) -> None:
        """Write a message of the launcher itself to stderr.

        The main thread must not wait long. So if nothing reads our output, the message is written
        later, after the piece that is being written.
        """
        self._messages.append(f"{PROGRAM}: {text}\n".encode())
        self.finish(_SECONDS_TO_SPEAK)

    def finish(self, seconds: float | None) -> None:
        """Write the messages of the launcher that have not been written yet.

        Args:
            seconds: how long to wait at most until messages can be written; None means no limit.
        """
        if not self._lock.acquire(timeout=-1 if seconds is None else seconds):
            return
        try:
            self._write_messages(seconds)
        finally:
            self._lock.release()

    def _write_messages(self, seconds):
        while self._messages:
            others = () if self._redrawn is None else self._redrawn[:1]
            if not all(_can_be_written(each, seconds) for each in (2, *others)):
                return
            self._write(2, b"", self._messages.popleft())

    def _write(self, descriptor, prefix, piece, source=None):
        writer = (descriptor, prefix if source is None else source)
        if self._lost:
            return
        try:
            # Only worker 0's stdout is redrawn; any other line starts below its progress bar.
            if self._redrawn is not None and writer != self._redrawn:
                _write_all(self._redrawn[0], b"\n")
            _write_all(descriptor, prefix + piece)
        except OSError:  # the output is closed, as by `tf-adasum-launch ... | head`
            self._lost = True
            self._events.put(signal.SIGPIPE)
        self._redrawn = writer if piece.endswith(b"\r") else None


class Log:
    """The file with the output of one worker from all its starts.

    Args:
        folder: the directory of the file, which is created if it is missing.
        rank: the rank of the worker.

    Attributes:
        path: the path of the file.

    Raises:
        ValueError: if the file cannot be written.
    """

    def __init__(self, folder: str, rank: int):
        self.path = os.path.join(folder, f"worker-{rank}.log")
        self._failure: OSError | None = None
        try:
            os.makedirs(folder, exist_ok=True)
            if os.path.exists(self.path) and stat.S_ISFIFO(os.stat(self.path).st_mode):
                raise OSError(f"{self.path} is a pipe, which may have no reader")
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise unusable_folder(folder, error) from error

    def begin(self, rank: int, num_workers: int, restart: int) -> None:
        """Write the line with which each start begins."""
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        start = f"restart {restart}" if restart else "started"
        self.write(f"{PROGRAM}: worker {rank} of {num_workers}, {start} {now}\n".encode())

    def write(self, line: bytes) -> None:
        """Write a line. Training continues if writing fails, see `failure`."""
        if self._failure is not None:
            return
        try:
            _write_all(self._descriptor, line)
        except OSError as error:
            self._failure = error

    def failure(self) -> str:
        """Return why the file is incomplete; "" if it is complete."""
        return "" if self._failure is None else f"{self.path} is not complete: {self._failure}"

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Relay:
    """Copies one stream of one worker, line by line.

    A progress bar rewrites its line after each "\\r". The console shows every change of worker 0's
    progress bar. For the other workers, and in files, only the last state of the line is written,
    when the line is complete.

    Args:
        descriptor: the stream to write to, 1 or 2.
        console: the console, which all workers share.
        prefix: the beginning of each line on the console.
        redraws: whether the console shows every change of a line.
        hides_noise: whether to leave out the lines of stderr that `log_filter` hides.
        stderr_tail: receives the lines of stderr.
        log: the file for the output; None without a file.
    """

    def __init__(
        self,
        descriptor: int,
        console: Console,
        *,
        prefix: bytes,
        redraws: bool,
        hides_noise: bool,
        stderr_tail: StderrTail,
        log: Log | None,
    ):
        self._descriptor, self._console, self._log = descriptor, console, log
        self._prefix, self._redraws = prefix, redraws
        self._filter = log_filter.Filter() if hides_noise and descriptor == 2 else None
        self._stderr_tail = stderr_tail if descriptor == 2 else None

    def copy(self, stream: Any, ended: threading.Event) -> None:
        """Copy until the worker closes the stream, or has ended and all its output is copied."""
        chunks = _chunks(stream, ended)
        try:
            self._copy(chunks)
        finally:
            for _ in chunks:  # after an error, so that the worker can still print
                pass
            stream.close()

    def _copy(self, chunks: Iterator[bytes]) -> None:
        pending = b""
        for chunk in chunks:
            pieces = (pending + chunk).splitlines(keepends=True)
            # Only the next byte distinguishes a final "\r" from the first half of "\r\n".
            pending = b"" if pieces[-1].endswith(b"\n") else pieces.pop()
            if len(pending) > _LONGEST_LINE:
                pieces.append(pending + b"\n")
                pending = b""
            for piece in pieces:
                self._take(piece)
        if pending:
            self._take(pending.rstrip(b"\r") + b"\n")

    def _take(self, piece: bytes) -> None:
        if self._filter is not None and self._filter.hides(piece):
            return
        is_line = piece.endswith(b"\n")
        if is_line and self._stderr_tail is not None:
            self._stderr_tail.read(piece.decode(errors="replace"))
        if is_line and self._log is not None:
            self._log.write(piece)
        if is_line or self._redraws:
            self._console.write(self._descriptor, self._prefix, piece, self)


def _chunks(stream: Any, ended: threading.Event) -> Iterator[bytes]:
    """Yield the output of a worker until the worker closes the stream, or has ended.

    If the worker has ended, all that it wrote is yielded first. The end of the worker is checked,
    because a daemon that left the worker's process group may keep the pipe open, and write to it.
    """
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    until = math.inf
    while time.monotonic() < until:
        last = ended.is_set()  # asked before the poll, which then returns all that was written
        if last:
            until = min(until, time.monotonic() + _SECONDS_AFTER_THE_END)
        if poll.poll(200):
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return
            yield chunk
        elif last:
            return


def _can_be_written(descriptor: int, seconds: float | None) -> bool:
    """Return whether a write to a descriptor would end within some seconds, even with an error."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def unusable_folder(folder: str, error: OSError) -> ValueError:
    """Return the error of a ``--log-dir`` that cannot be written."""
    return ValueError(
        "--log-dir: expected a directory that can be written. Received: --log-dir "
        f"{folder} ({error})"
    )


def logs_in(folder: str | None, ranks: range) -> list[Log]:
    """Return the open log files of some workers; an empty list without a folder.

    Raises:
        ValueError: if a file cannot be written.
    """
    if folder is None:
        return []
    with contextlib.ExitStack() as opened:
        logs = []
        for rank in ranks:
            logs.append(Log(folder, rank))
            opened.callback(logs[-1].close)
        opened.pop_all()
    return logs
