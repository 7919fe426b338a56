"""Write the output of the workers line by line to the console, and to a file for each worker.

Uses only the standard library.
"""

import collections
import math
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from tf_adasum.cluster.timeouts import ANSWER_SECONDS, MOMENT_SECONDS
from tf_adasum.launch import log_filter

PROGRAM = "tf-adasum-launch"  # the prefix of a message that no worker wrote

_LONGEST_LINE = 1 << 20  # bytes; a longer line is written as several lines


class Console:
    """Writes whole lines to stdout and stderr, one at a time."""

    def __init__(self, events: queue.SimpleQueue):
        self._events = events
        self._lock = threading.Lock()
        self._messages: collections.deque[bytes] = collections.deque()  # not written yet
        self._redrawn: tuple[int, bytes] | None = None  # the writer whose piece ended in "\r"
        self._lost = False

    def write(self, descriptor: int, prefix: bytes, piece: bytes) -> None:
        """Write one piece of output. If the output is closed, ask the job to stop.

        Args:
            descriptor: 1 or 2.
            prefix: the beginning of the line.
            piece: the rest of the line, or one state of a line that is redrawn.
        """
        with self._lock:
            self._write(descriptor, prefix, piece)
            self._write_messages(None)

    def say(self, text: str) -> None:
        """Write a message of the launcher itself to stderr.

        The main thread must not wait long. So if nothing reads our output, the message is written
        later, after the piece that is being written.
        """
        self._messages.append(f"{text}\n".encode())
        self.finish(MOMENT_SECONDS)

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
            self._write(2, f"{PROGRAM}: ".encode(), self._messages.popleft())

    def _write(self, descriptor, prefix, piece):
        writer = descriptor, prefix
        if self._lost:
            return
        try:
            # Only worker 0 redraws its line; any other line starts below its progress bar.
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
        failure: why the file is incomplete; "" if it is complete.

    Raises:
        ValueError: if the file cannot be written.
    """

    def __init__(self, folder: str, rank: int):
        self.path = os.path.join(folder, f"worker-{rank}.log")
        self.failure = ""
        try:
            os.makedirs(folder, exist_ok=True)
            # A pipe without a reader is an error, and is not waited for.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            self._descriptor = os.open(self.path, flags, 0o666)
        except OSError as error:
            raise unusable_folder(folder, error) from error

    def begin(self, rank: int, num_workers: int, restart: int) -> None:
        """Write the line with which each start begins."""
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        start = f"restart {restart}" if restart else "started"
        self.write(f"{PROGRAM}: worker {rank} of {num_workers}, {start} {now}\n".encode())

    def write(self, line: bytes) -> None:
        """Write a line. Training continues if writing fails, see `failure`."""
        if self.failure:
            return
        try:
            _write_all(self._descriptor, line)
        except OSError as error:
            self.failure = f"{self.path} is not complete: {error}"

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
        worker: the `worker_process.Worker`, which keeps its last lines on stderr.
    """

    def __init__(self, descriptor: int, console: Console, prefix: bytes, worker: Any):
        self._descriptor, self._console, self._prefix = descriptor, console, prefix
        self._worker = worker
        self._filter = log_filter.Filter() if worker.is_quiet and descriptor == 2 else None

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
        if is_line and self._descriptor == 2:
            self._worker.stderr_tail.read(piece.decode(errors="replace"))
        if is_line and self._worker.log is not None:
            self._worker.log.write(piece)
        if is_line or self._worker.rank == 0:
            self._console.write(self._descriptor, self._prefix, piece)


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
            until = min(until, time.monotonic() + ANSWER_SECONDS)
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
