"""Run a group of worker processes: start them, supervise them, and stop what is left.

Reading order: `run_group` (all of it) -> `_Job` (start, supervise, stop) -> `_Worker` (one
process). What they write goes through `output`; `failures` finds the worker that failed first.

Who does what: the main thread starts, signals and reaps the workers. Every other thread only
reads a pipe or waits for one process, and reports to the main thread through one queue.

Standard library only, as `tf_adasum.launch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tf_adasum.launch import failures, live, noise, terminal
from tf_adasum.launch.output import Log, Relay
from tf_adasum.launch.status import Board

EXIT_TIMEOUT = 124  # as coreutils' `timeout`
EXIT_USAGE = 2  # as argparse and the shells: the same arguments will fail again
EXIT_ASKED = 75  # EX_TEMPFAIL: the workers were asked to end, and the next start resumes
POLITE_SECONDS = 30.0  # after SIGTERM: for a backup. Slurm and Kubernetes wait as long
_LAST_WORDS_SECONDS = 0.5  # how long to wait for the output of a worker that ended
_SECONDS_TO_READ = 5.0  # how long to wait for a reader of our output after a stop
_PAUSE_SECONDS = 1.0  # before a restart, so that what fails at once does not fail in a storm

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1,)  # Slurm's warning before the time limit, to all processes of a step
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here, not after a fork


@dataclasses.dataclass(frozen=True)
class Crew:
    """Which workers are started here, and who receives their output.

    Attributes:
        ranks: those of the workers of this machine.
        num_workers: how many there are on all machines.
        logs: a file for the output of each of `ranks`; empty for none.
        is_heard: whether output goes through this process. Defaults to True; False lets a single
            worker inherit stdin, stdout and stderr.
        board: their status, which is shown with the output. Defaults to None: it is not shown.
    """

    ranks: range
    num_workers: int
    logs: Sequence[Log] = ()
    is_heard: bool = True
    board: Board | None = None


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        code: the exit status, as `tf_adasum.launch.launch` describes it.
        first: the worker that failed first in the last start; None if none has.
    """

    code: int
    first: failures.End | None = None


EnvironmentsOf = Callable[[int], contextlib.AbstractContextManager[list[dict[str, str]]]]


def run_group(
    command: Sequence[str],
    crew: Crew,
    environments_of: EnvironmentsOf,
    timeout: float | None,
    grace: float,
    max_restarts: int = 0,
) -> Ending:
    """Run one worker per environment until all have ended or one reason stops them all.

    A worker that fails may start the whole group again; signals to this process, the timeout,
    `EXIT_USAGE` and `EXIT_ASKED` end it for good.

    Args:
        command: the complete argument vector of a worker.
        crew: the workers.
        environments_of: function from the number of the restart, 0 for the first start, to a
            context manager that gives the complete environment of every worker. It is left when
            all of them have ended.
        timeout: seconds after which the group is stopped, all starts together; None for no limit.
        grace: seconds between SIGTERM and SIGKILL.
        max_restarts: how often the group is started again at most.

    Raises:
        OSError: a worker could not be started. The workers already started have been stopped.
    """
    job = _Job(command, crew, environments_of, grace)
    with signals_sent_to(job.events):
        code = job.run(timeout, max_restarts)
    # Handlers are restored, so an interrupt ends this wait for a reader of our output.
    job.drain()
    return Ending(code, job.first)


@contextlib.contextmanager
def signals_sent_to(events: queue.SimpleQueue) -> Iterator[None]:
    """Report stop signals as events instead of interrupting the main thread anywhere.

    A signal that is ignored stays ignored (``nohup``, background jobs). Outside the main thread
    Python cannot handle signals, so they keep their meaning.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (*_STOP_SIGNALS, *_PASSED_ON)}
    left_alone = (signal.SIG_IGN, None)  # None: not installed from Python, cannot be restored
    handled = [number for number in previous if previous[number] not in left_alone]
    for number in handled:  # SimpleQueue.put is reentrant, so a handler may call it
        signal.signal(number, lambda received, _: events.put(signal.Signals(received)))
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, previous[number])


class _Job:
    """The workers of one launch, from their start to the end of the last one.

    Attributes:
        events: ends of workers, and signals to this process.
        first: the worker that failed first in the last start; None if none has.
    """

    def __init__(
        self,
        command: Sequence[str],
        crew: Crew,
        environments_of: EnvironmentsOf,
        grace: float,
    ):
        self.events: queue.SimpleQueue[_Worker | signal.Signals] = queue.SimpleQueue()
        self.first: failures.End | None = None
        self._command = list(command)
        self._crew = crew
        self._environments_of = environments_of
        self._grace = grace
        self._console = live.console(self.events, crew.board is not None)
        self._running: list[_Worker] = []
        self._ends: list[failures.End] = []  # in their order, of this start
        self._threads: list[threading.Thread] = []
        self._is_stopped = False  # by a signal or the timeout, which want no restart
        self._is_passed_on = False  # a signal, which wants none either

    def run(self, timeout: float | None, max_restarts: int) -> int:
        """Start the workers, again if one fails, and return the exit status of the last start."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for restart in range(max_restarts + 1):
            if restart:
                self._console.say(f"restart {restart} of {max_restarts}")
            self._ends, self.first = [], None
            with self._environments_of(restart) as environments:
                code = self._run_once(environments, restart, deadline)
            if code == EXIT_USAGE and restart < max_restarts:
                self._console.say(f"exit status {EXIT_USAGE} means wrong usage: no restart")
            is_final = code in (0, EXIT_USAGE, EXIT_ASKED)
            if is_final or restart == max_restarts or self._is_stopped or self._is_passed_on:
                break
            code = self._pause(deadline) or code
            if self._is_stopped:
                break
        return code

    def drain(self) -> None:
        """Wait until all output of the ended workers has been written, and close their files.

        After a signal or the timeout nobody waits long for a reader of our output.
        """
        until = time.monotonic() + _SECONDS_TO_READ if self._is_stopped else None

        def remaining():
            return None if until is None else max(0.0, until - time.monotonic())

        for thread in self._threads:
            thread.join(remaining())
        is_all_copied = not any(each.is_alive() for each in self._threads)
        for log in self._crew.logs:
            if is_all_copied:
                log.close()
            if log.failure():
                self._console.say(log.failure())
        self._console.finish(remaining())

    def _run_once(
        self, environments: list[dict[str, str]], restart: int, deadline: float | None
    ) -> int:
        """Start the workers, supervise them, stop what is left, and return the exit status."""
        showing, is_over = [], threading.Event()
        try:
            self._start(environments, restart)
            if self._crew.board:
                showing = [start_thread(self._console.follow, self._crew.board, is_over)]
                self._threads += showing
            code = self._supervise(deadline)
        finally:
            self._stop()
            is_over.set()
        for thread in showing:
            thread.join(_LAST_WORDS_SECONDS)
        if self._is_stopped and any(end.code == EXIT_ASKED for end in self._ends):
            code = EXIT_ASKED  # they also received it, and have made their backup
        if self.first is not None:
            self.first = failures.first_of(self._ends)
            for line in failures.summary(self._ends) if self._crew.num_workers > 1 else ():
                self._console.say(line)
        return code

    def _pause(self, deadline: float | None) -> int | None:
        """Wait a little, and for the last output, before a restart; return a reason to have none.

        No thread may be left: see `_start`. A signal ends the wait, also that for a reader of our
        output who does not read.
        """
        until = time.monotonic() + _PAUSE_SECONDS
        while time.monotonic() < until or any(each.is_alive() for each in self._threads):
            event = self._next_event(time.monotonic() + 0.05)
            if isinstance(event, signal.Signals):  # even one to pass on: no worker is left
                return self._stopped_by(event)
            if deadline is not None and time.monotonic() > deadline:
                return self._timed_out()
        self._threads.clear()
        return None

    def _stopped_by(self, number: signal.Signals) -> int:
        self._is_stopped = True
        # SIGPIPE: what ended the reader of our output may also have reached the workers.
        if number in (signal.SIGTERM, signal.SIGPIPE):
            self._grace = max(self._grace, POLITE_SECONDS)
        self._console.say(f"{number.name}, stopping all workers")
        return 128 + number

    def _timed_out(self) -> int:
        self._is_stopped = True
        self._console.say("the time given by --timeout is over, stopping all workers")
        return EXIT_TIMEOUT

    def _start(self, environments: list[dict[str, str]], restart: int) -> None:
        # All processes before the first thread: `preexec_fn` runs Python between fork and exec,
        # where a lock held by another thread would never be released.
        crew, streams = self._crew, {}  # it inherits ours
        if crew.is_heard:
            pipe = subprocess.PIPE
            streams = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
        if crew.board:
            crew.board.begin()
        logs = crew.logs or [None] * len(crew.ranks)
        try:
            for rank, environment, log in zip(crew.ranks, environments, logs, strict=True):
                if log is not None:
                    log.begin(rank, crew.num_workers, restart)
                if crew.board:
                    environment = {**environment, **crew.board.environment(rank)}
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    bufsize=0,
                    start_new_session=True,
                    preexec_fn=functools.partial(end_with_parent, os.getpid()),
                    **streams,
                )
                is_quiet = noise.hides_information(environment)
                self._running.append(_Worker(rank, process, is_quiet, log))
        finally:  # also when a later one could not start: `_stop` waits for their end
            for worker in self._running:
                self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        """Start the threads that report the worker's end and copy its output."""
        for stream, descriptor in ((worker.process.stdout, 1), (worker.process.stderr, 2)):
            if stream is not None:
                relay = Relay(
                    descriptor,
                    self._console,
                    prefix=terminal.prefix_of_worker(
                        worker.rank, self._crew.num_workers, descriptor
                    ),
                    redraws=worker.rank == 0,
                    hides_noise=worker.is_quiet,
                    words=worker.words,
                    log=worker.log,
                )
                worker.readers.append(start_thread(relay.copy, stream, worker.ended))
        self._threads += [*worker.readers, start_thread(report_end, worker, self.events)]

    def _supervise(self, deadline: float | None) -> int:
        """Wait until all workers have ended well, or for the first reason to stop the job."""
        code = 0
        while self._running:
            event = self._next_event(deadline)
            if event is None:
                return self._timed_out()
            if event in _PASSED_ON:
                self._pass_on(event)
                continue
            if isinstance(event, signal.Signals):
                return self._stopped_by(event)
            end = self._reap(event)
            if end.code == EXIT_ASKED:  # do not stop the others: one may write the backup
                code = EXIT_ASKED
            elif end.code != 0:
                self.first = end
                stopping = ", stopping the others" if self._running else ""
                self._console.say(f"worker {end.rank} ended with {end.cause}{stopping}")
                return end.code if end.code > 0 else 128 - end.code
        if code == EXIT_ASKED:
            self._console.say(f"the workers were asked to end (exit status {EXIT_ASKED})")
        return code

    def _pass_on(self, number: signal.Signals) -> None:
        """Send a signal to the workers, which may act on it; not to what they have started."""
        self._is_passed_on = True
        self._console.say(f"{number.name}, passed on to all workers")
        for worker in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, number)

    def _stop(self) -> None:
        """End the workers still running: SIGTERM, and SIGKILL after the grace or on SIGINT."""
        for worker in self._running:
            worker.is_stopped = True
            worker.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + self._grace
        while self._running:
            event = self._next_event(deadline)
            if isinstance(event, _Worker):
                self._reap(event)
                continue
            if event in _PASSED_ON:
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

    def _reap(self, worker: _Worker) -> failures.End:
        self._running.remove(worker)
        end = worker.reap()
        self._ends.append(end)
        if self._crew.board:
            has_failed = end.code not in (0, EXIT_ASKED) and not end.is_stopped
            self._crew.board.end(end.rank, end.code if has_failed else 0)
        return end


class _Worker:
    """One running worker: its process, and the threads that read its output."""

    def __init__(
        self, rank: int, process: subprocess.Popen, is_quiet: bool = False, log: Log | None = None
    ):
        self.rank = rank
        self.process = process
        self.is_quiet = is_quiet
        self.log = log
        self.words = failures.LastWords()
        self.ended = threading.Event()
        self.is_stopped = False
        self.readers: list[threading.Thread] = []

    def signal_group(self, number: int) -> None:
        """Signal the worker and its children; only valid until the worker is reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def reap(self) -> failures.End:
        """Kill what the ended worker left in its group, collect it, and return how it ended."""
        # Until `wait` the worker is a zombie, so the group id cannot belong to anyone else yet.
        self.signal_group(signal.SIGKILL)
        code = self.process.wait()
        self.ended.set()
        # Its last lines precede our message about its end; but do not wait for a reader of our
        # output who does not read.
        limit = time.monotonic() + _LAST_WORDS_SECONDS
        for reader in self.readers:
            reader.join(max(0.0, limit - time.monotonic()))
        path = self.log.path if self.log else ""
        words = self.words if self.readers else None
        return failures.End(self.rank, code, words, path, self.is_stopped)


def report_end(worker: _Worker, events: queue.SimpleQueue) -> None:
    """Wait for the worker's end without reaping it, which would free its group id."""
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    events.put(worker)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent, or the thread of it, ends.

    Args:
        parent: the pid that the parent has, or had.
        number: the signal.
    """
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the request was made
        os.kill(os.getpid(), number)


def start_thread(target: Callable, *arguments) -> threading.Thread:
    """Start a thread that does not keep this process alive."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread
