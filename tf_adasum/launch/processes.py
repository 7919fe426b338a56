"""Run a group of worker processes: start them, supervise them, and stop what is left.

Reading order: `run_group` (all of it) -> `_Job` (start, supervise, stop) -> `_Worker` (one process)
-> `_Console` and `_relay` (output).

Who does what: the main thread starts, signals and reaps the workers. Every other thread only
reads a pipe or waits for one process, and reports to the main thread through one queue.

Standard library only, as `tf_adasum.launch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tf_adasum.launch import noise

PROGRAM = "tf-adasum-launch"  # who speaks in a message that no worker wrote
EXIT_TIMEOUT = 124  # as coreutils' `timeout`
EXIT_USAGE = 2  # as argparse and the shells: the same arguments will fail again
_LAST_WORDS_SECONDS = 0.5  # how long to wait for the output of a worker that ended
_PAUSE_SECONDS = 1.0  # before a restart, so that what fails at once does not fail in a storm

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here, not after a fork

EnvironmentsOf = Callable[[int], contextlib.AbstractContextManager[list[dict[str, str]]]]


def run_group(
    command: Sequence[str],
    environments_of: EnvironmentsOf,
    timeout: float | None,
    grace: float,
    max_restarts: int = 0,
) -> int:
    """Run one worker per environment until all have ended or one reason stops them all.

    A worker that fails may start the whole group again; signals to this process, the timeout and
    `EXIT_USAGE` end it for good.

    Args:
        command: the complete argument vector of a worker.
        environments_of: function from the number of the restart, 0 for the first start, to a
            context manager that gives the complete environment of every worker. It is left when
            all of them have ended.
        timeout: seconds after which the group is stopped, all starts together; None for no limit.
        grace: seconds between SIGTERM and SIGKILL.
        max_restarts: how often the group is started again at most.

    Returns:
        The exit code, as `tf_adasum.launch.launch` describes it.

    Raises:
        OSError: a worker could not be started. The workers already started have been stopped.
    """
    job = _Job(command, environments_of, grace)
    with _signals_sent_to(job.events):
        code = job.run(timeout, max_restarts)
    # Handlers are restored, so an interrupt ends this wait for a reader of our output.
    job.drain()
    return code


@contextlib.contextmanager
def _signals_sent_to(events: queue.SimpleQueue) -> Iterator[None]:
    """Report stop signals as events instead of interrupting the main thread anywhere.

    A signal that is ignored stays ignored (``nohup``, background jobs). Outside the main thread
    Python cannot handle signals, so they keep their meaning.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    left_alone = (signal.SIG_IGN, None)  # None: not installed from Python, cannot be restored
    handled = [number for number in _STOP_SIGNALS if previous[number] not in left_alone]
    for number in handled:  # SimpleQueue.put is reentrant, so a handler may call it
        signal.signal(number, lambda received, _: events.put(signal.Signals(received)))
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, previous[number])


class _Job:
    """The workers of one launch, from their start to the end of the last one."""

    def __init__(
        self,
        command: Sequence[str],
        environments_of: EnvironmentsOf,
        grace: float,
    ):
        self.events: queue.SimpleQueue[_Worker | signal.Signals] = queue.SimpleQueue()
        self._command = list(command)
        self._environments_of = environments_of
        self._grace = grace
        self._console = _Console(self.events)
        self._running: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self._is_stopped = False  # by a signal or the timeout, which want no restart

    def run(self, timeout: float | None, max_restarts: int) -> int:
        """Start the workers, again where one fails, and return the exit code of the last start."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for restart in range(max_restarts + 1):
            if restart:
                self._console.say(f"restart {restart} of {max_restarts}")
            with self._environments_of(restart) as environments:
                code = self._run_once(environments, deadline)
            if code in (0, EXIT_USAGE) or restart == max_restarts or self._is_stopped:
                break
            code = self._pause(deadline) or code
            if self._is_stopped:
                break
        return code

    def drain(self) -> None:
        """Wait until all output of the ended workers has been written."""
        for thread in self._threads:
            thread.join()

    def _run_once(self, environments: list[dict[str, str]], deadline: float | None) -> int:
        """Start the workers, supervise them, stop what is left, and return the exit code."""
        try:
            self._start(environments)
            return self._supervise(deadline)
        finally:
            self._stop()

    def _pause(self, deadline: float | None) -> int | None:
        """Wait a little, and for the last output, before a restart; return a reason to have none.

        No thread may be left: see `_start`. A signal ends the wait, also that for a reader of our
        output who does not read.
        """
        until = time.monotonic() + _PAUSE_SECONDS
        while time.monotonic() < until or any(each.is_alive() for each in self._threads):
            event = self._next_event(time.monotonic() + 0.05)
            if isinstance(event, signal.Signals):
                return self._stopped_by(event)
            if deadline is not None and time.monotonic() > deadline:
                return self._timed_out()
        self._threads.clear()
        return None

    def _stopped_by(self, number: signal.Signals) -> int:
        self._is_stopped = True
        self._console.say(f"{number.name}, stopping all workers")
        return 128 + number

    def _timed_out(self) -> int:
        self._is_stopped = True
        self._console.say("the time given by --timeout is over, stopping all workers")
        return EXIT_TIMEOUT

    def _start(self, environments: list[dict[str, str]]) -> None:
        # All processes before the first thread: `preexec_fn` runs Python between fork and exec,
        # where a lock held by another thread would never be released.
        streams = {}  # one worker inherits ours
        if len(environments) > 1:
            pipe = subprocess.PIPE
            streams = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
        try:
            for index, environment in enumerate(environments):
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    bufsize=0,
                    start_new_session=True,
                    preexec_fn=_death_with_parent(),
                    **streams,
                )
                is_quiet = noise.hides_information(environment)
                self._running.append(_Worker(index, process, is_quiet))
        finally:  # also when a later one could not start: `_stop` waits for their end
            for worker in self._running:
                self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        """Start the threads that report the worker's end and copy its output."""
        for stream, descriptor in ((worker.process.stdout, 1), (worker.process.stderr, 2)):
            if stream is not None:
                worker.readers.append(_thread(_relay, worker, stream, descriptor, self._console))
        self._threads += [*worker.readers, _thread(_report_end, worker, self.events)]

    def _supervise(self, deadline: float | None) -> int:
        """Wait until all workers ended with 0, or for the first reason to stop the job."""
        while self._running:
            event = self._next_event(deadline)
            if event is None:
                return self._timed_out()
            if isinstance(event, signal.Signals):
                return self._stopped_by(event)
            code = self._reap(event)
            if code != 0:
                cause = f"exit code {code}" if code > 0 else _signal_name(-code)
                self._console.say(f"worker {event.index} ended with {cause}, stopping the others")
                return code if code > 0 else 128 - code
        return 0

    def _stop(self) -> None:
        """End the workers still running: SIGTERM, and SIGKILL after the grace or on SIGINT."""
        for worker in self._running:
            worker.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + self._grace
        while self._running:
            event = self._next_event(deadline)
            if isinstance(event, _Worker):
                self._reap(event)
                continue
            self._is_stopped |= event is not None
            if event is None or event is signal.SIGINT:
                deadline = None
                for worker in self._running:
                    worker.signal_group(signal.SIGKILL)

    def _next_event(self, deadline: float | None) -> _Worker | signal.Signals | None:
        """Return the next event, or None when the deadline comes first."""
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self.events.get(timeout=wait)
        except queue.Empty:
            return None

    def _reap(self, worker: _Worker) -> int:
        self._running.remove(worker)
        return worker.reap()


class _Worker:
    """One running worker: its process, and the threads that read its output."""

    def __init__(self, index: int, process: subprocess.Popen, is_quiet: bool = False):
        self.index = index
        self.process = process
        self.is_quiet = is_quiet
        self.ended = threading.Event()
        self.readers: list[threading.Thread] = []

    def signal_group(self, number: int) -> None:
        """Signal the worker and its children; only valid until the worker is reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def reap(self) -> int:
        """Kill what the ended worker left in its group, collect it, and return its exit code."""
        # Until `wait` the worker is a zombie, so the group id cannot belong to anyone else yet.
        self.signal_group(signal.SIGKILL)
        code = self.process.wait()
        self.ended.set()
        # Its last words come before what we say about its end; but nobody waits for a reader of
        # our output who does not read.
        limit = time.monotonic() + _LAST_WORDS_SECONDS
        for reader in self.readers:
            reader.join(max(0.0, limit - time.monotonic()))
        return code


class _Console:
    """What writes whole lines to our stdout and stderr, one at a time."""

    def __init__(self, events: queue.SimpleQueue):
        self._events = events
        self._lock = threading.Lock()
        self._redrawn: tuple[int, bytes] | None = None  # whose last piece ended in "\r"
        self._lost = False

    def write(self, descriptor: int, prefix: bytes, piece: bytes) -> None:
        """Write one piece of output; if that is no longer possible, ask the job to stop."""
        with self._lock:
            if self._lost:
                return
            try:
                # Only worker 0's stdout redraws; any other line starts below its bar.
                if self._redrawn is not None and (descriptor, prefix) != self._redrawn:
                    _write_all(self._redrawn[0], b"\n")
                _write_all(descriptor, prefix + piece)
            except OSError:  # e.g. `tf-adasum-launch ... | head`
                self._lost = True
                self._events.put(signal.SIGPIPE)
            self._redrawn = (descriptor, prefix) if piece.endswith(b"\r") else None

    def say(self, text: str) -> None:
        """Write a message of the launcher itself to stderr."""
        self.write(2, f"{PROGRAM}: ".encode(), f"{text}\n".encode())


def _relay(worker: _Worker, stream, descriptor: int, console: _Console) -> None:
    """Copy one stream of one worker, line by line.

    A progress bar rewrites its line after each "\r". Worker 0's is passed on as it changes; of
    the other workers only the last state is shown, when the line is complete. Of a quiet worker's
    stderr what `noise` hides is left out.
    """
    is_quiet = worker.is_quiet and descriptor == 2
    prefix = b"[worker %d] " % worker.index
    pending = b""
    for chunk in _chunks(stream, worker.ended):
        pieces = (pending + chunk).splitlines(keepends=True)
        # Only the next byte tells a final "\r" from the first half of "\r\n".
        pending = b"" if pieces[-1].endswith(b"\n") else pieces.pop()
        for piece in pieces:
            if is_quiet and noise.is_hidden(piece):
                continue
            if worker.index == 0 or piece.endswith(b"\n"):
                console.write(descriptor, prefix, piece)
    if pending:
        console.write(descriptor, prefix, pending.rstrip(b"\r") + b"\n")
    stream.close()


def _chunks(stream, ended: threading.Event) -> Iterator[bytes]:
    """Yield what a worker writes, until it closes the stream or has ended with nothing left.

    The second condition is for a daemon that left the worker's group and keeps the pipe open.
    """
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    while True:
        last = ended.is_set()  # asked before the poll: what was written before the end is seen
        if poll.poll(200):
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return
            yield chunk
        elif last:
            return


def _report_end(worker: _Worker, events: queue.SimpleQueue) -> None:
    """Wait for the worker's end without reaping it, which would free its group id."""
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    events.put(worker)


def _death_with_parent() -> Callable[[], None] | None:
    """Return what a child runs before exec so that it dies with this thread, or None."""
    if _LIBC is None:
        return None
    parent = os.getpid()

    def request() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request was made
            os.kill(os.getpid(), signal.SIGKILL)

    return request


def _thread(target: Callable, *arguments) -> threading.Thread:
    """Start a thread that does not keep this process alive."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
