"""Run a group of worker processes: start and supervise them, and stop those that still run.

Reading order: `Job` (start, supervise, stop) -> `Worker` (one process). `output` writes the output
of the workers; `failures` finds the worker that failed first.

The main thread starts, signals and reaps the workers. Every other thread only reads a pipe or waits
for one process, and reports to the main thread through one queue.

Uses only the standard library.
"""

import contextlib
import dataclasses
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence

from tf_adasum.cluster import error_file
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, LEASE_SECONDS
from tf_adasum.launch import failures, log_filter
from tf_adasum.launch.failures import EXIT_STOP_REQUESTED, EXIT_TIMEOUT, EXIT_USAGE
from tf_adasum.launch.output import Console, Log, Relay
from tf_adasum.launch.signals import PASSED_ON, signals_sent_to
from tf_adasum.launch.worker_process import (
    Worker,
    has_ended,
    report_end,
    start_process,
    start_thread,
)

RESTART_COUNT = "TF_ADASUM_RESTART_COUNT"  # a variable: how often workers were started before
BACKUP_GRACE_SECONDS = 30.0  # for a backup after SIGTERM; Slurm and Kubernetes wait as long
_SECONDS_TO_DIE = 30.0  # after SIGKILL


@dataclasses.dataclass(frozen=True)
class StopRequest:
    """An event: another part of the launcher stops the workers.

    Attributes:
        reason: the reason that the launcher prints.
        grace: seconds between SIGTERM and SIGKILL.
    """

    reason: str
    grace: float


class Ending(int):
    """The exit status that `tf_adasum.launch.launch` returns, and how the job ended.

    Attributes:
        first: the worker that failed first in the last start; None if no worker failed.
        stopped_by: the signal that stopped the job; None if no signal did.
    """

    first: failures.ProcessExit | None = None
    stopped_by: signal.Signals | None = None


@dataclasses.dataclass(frozen=True)
class Control:
    """Connects a job to another part of the launcher, which may stop the workers.

    Attributes:
        events: the queue of events, which also gets `StopRequest`s.
        fork_lock: a lock that other threads hold while they run Python code. The job holds it while
            it starts processes.
        earlier_starts: how often the workers were started before.
    """

    events: queue.SimpleQueue = dataclasses.field(default_factory=queue.SimpleQueue)
    fork_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    earlier_starts: int = 0


EnvironmentsOf = Callable[[int], contextlib.AbstractContextManager[list[dict[str, str]]]]


@dataclasses.dataclass(eq=False)
class Job:
    """Starts, supervises and stops the workers of this machine.

    Attributes:
        command: the complete argument vector of a worker.
        ranks: the ranks of the workers of this machine.
        num_workers: the number of workers on all machines.
        environments_of: function that receives how often the workers were started before. It
            returns a context manager that yields a list with the complete environment of each
            worker. The context is left when all workers have ended.
        grace: seconds between SIGTERM and SIGKILL.
        logs: a file for the output of each of `ranks`; empty without files.
        captures_output: whether output goes through this process. False lets a single worker
            inherit stdin, stdout and stderr.
        cpus: the CPUs of each of `ranks`; empty if each worker runs on the CPUs of this process.
        control: of another part of the launcher that may stop the workers. Defaults to None.
    """

    command: Sequence[str]
    ranks: range
    num_workers: int
    environments_of: EnvironmentsOf
    grace: float
    logs: Sequence[Log]
    captures_output: bool
    cpus: Sequence[set[int]]
    control: Control | None = None

    def __post_init__(self) -> None:
        """Begin without workers."""
        control = self.control or Control()
        self._events: queue.SimpleQueue[Worker | signal.Signals | StopRequest] = control.events
        self._fork_lock = control.fork_lock
        self._console = Console(self._events)
        self._running: list[Worker] = []
        self._ends: list[failures.ProcessExit] = []  # of this start, in their order
        self._threads: list[threading.Thread] = []
        self._first: failures.ProcessExit | None = None  # that failed
        self._signal: signal.Signals | None = None
        # By a signal, the timeout or a `StopRequest`: there is no restart.
        self._is_stopped = False
        self._is_requested = False  # by a `StopRequest`
        self._is_passed_on = False  # a signal was passed on: there is no restart

    def run(self, timeout: float | None, max_restarts: int) -> Ending:
        """Run the workers until all of them have ended or are stopped.

        If a worker fails, all are started again. There is no restart after a signal to this
        process, after the timeout, or after exit status 2 (wrong usage) or 75 (asked to end).

        Args:
            timeout: seconds, including all restarts, after which the workers are stopped; None
                means no limit.
            max_restarts: how often the workers are started again at most.

        Raises:
            OSError: if a worker could not be started. Workers that had started were stopped.
        """
        with signals_sent_to(self._events):
            ending = Ending(self._run(timeout, max_restarts))
        # This waits until our output is read. Handlers are restored, so an interrupt ends the wait.
        self._drain()
        ending.first, ending.stopped_by = self._first, self._signal
        return ending

    def _run(self, timeout: float | None, max_restarts: int) -> int:
        """Start the workers, again if a worker fails; return the exit status of the last start."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for restart in range(max_restarts + 1):
            if restart:
                self._console.say(f"restart {restart} of {max_restarts}")
            self._ends, self._first = [], None
            with (
                self.environments_of(restart) as environments,
                error_file.folder() as self._errors,
            ):
                code = self._run_once(environments, deadline)
            if code == EXIT_USAGE and restart < max_restarts:
                self._console.say(f"no restart, because exit status {EXIT_USAGE} means wrong usage")
            is_final = code in (0, EXIT_USAGE, EXIT_STOP_REQUESTED)
            if is_final or restart == max_restarts or self._is_stopped or self._is_passed_on:
                break
            code = self._pause(deadline) or code
            if self._is_stopped:
                break
        return code

    def _drain(self) -> None:
        """Wait until all output of the ended workers has been written, and close their files.

        After a signal or the timeout, and if another part of the launcher waits for the end, wait
        at most 5 seconds until our output is read.
        """
        is_bounded = self._is_stopped or self.control
        until = time.monotonic() + LEASE_SECONDS if is_bounded else None

        def remaining():
            return None if until is None else max(0.0, until - time.monotonic())

        for thread in self._threads:
            thread.join(remaining())
        is_all_copied = not any(each.is_alive() for each in self._threads)
        for log in self.logs:
            if is_all_copied:
                log.close()
            if log.failure:
                self._console.say(log.failure)
        self._console.finish(remaining())

    def _run_once(self, environments: list[dict[str, str]], deadline: float | None) -> int:
        """Start, supervise and stop the workers of one start, and return the exit status."""
        try:
            self._start(environments)
            code = self._supervise(deadline)
        finally:
            self._stop()
        has_all = len(self._ends) == len(self.ranks)
        if self._is_requested and has_all and not any(end.code for end in self._ends):
            code = 0
            self._console.say(
                "the workers have exited with status 0, so they count as finished, and the job "
                "does not continue"
            )
        elif self._is_stopped and any(end.code == EXIT_STOP_REQUESTED for end in self._ends):
            code = EXIT_STOP_REQUESTED  # workers received the signal, and have made their backup
        if self._is_requested and (own := failures.own_failures(self._ends)):
            self._first, code = own[0], own[0].code  # the reason for the request, or one more
        if self._first is not None:
            self._first = failures.first_failure(self._ends)
            for line in failures.summary(self._ends) if self.num_workers > 1 else ():
                self._console.say(line)
        return code

    def _pause(self, deadline: float | None) -> int | None:
        """Wait a second before a restart, and until all output is written.

        All threads must have ended before a restart, see `_start`. If nobody reads our output, the
        threads that write it never end. A signal ends the wait in this case too.

        Returns:
            None if the job can restart; the exit status if a signal or the timeout forbids it.
        """
        # A script that fails at once is not run nonstop.
        until = time.monotonic() + HEARTBEAT_SECONDS
        while time.monotonic() < until or any(each.is_alive() for each in self._threads):
            event = self._next_event(time.monotonic() + 0.05)
            is_late = deadline is not None and time.monotonic() > deadline
            if event is not None or is_late:  # even SIGUSR1, because no worker can receive it
                return self._stop_for(event)
        self._threads = []
        return None

    def _stop_for(self, event: signal.Signals | StopRequest | None) -> int:
        """Stop the job at an event, or at the timeout; return the exit status."""
        self._is_stopped = True
        if isinstance(event, StopRequest):
            self._is_requested, self.grace = True, event.grace
            self._console.say(f"stopping the workers of this machine, because {event.reason}")
            return 128 + signal.SIGTERM
        if event is None:
            self._console.say("the time given by --timeout is over, stopping all workers")
            return EXIT_TIMEOUT
        self._signal = event
        # At SIGPIPE, the reader of our output has ended. The signal that ended it may also have
        # reached the workers, so they may be making a backup.
        if event in (signal.SIGTERM, signal.SIGPIPE):
            self.grace = max(self.grace, BACKUP_GRACE_SECONDS)
        self._console.say(f"{event.name}, stopping all workers")
        return 128 + event

    def _start(self, environments: list[dict[str, str]]) -> None:
        # All processes start before the first thread, because `preexec_fn` runs Python between fork
        # and exec, where a lock held by another thread would never be released.
        logs = self.logs or [None] * len(self.ranks)
        cpus = self.cpus or [set()] * len(self.ranks)
        try:
            of_workers = zip(self.ranks, environments, logs, cpus, strict=True)
            for rank, environment, log, own in of_workers:
                if log is not None:
                    log.begin(rank, self.num_workers, int(environment[RESTART_COUNT]))
                path = self._errors and os.path.join(self._errors, str(rank))
                environment = {**environment, error_file.NAME: path}
                with self._fork_lock:
                    process = start_process(self.command, environment, own, self.captures_output)
                is_quiet = log_filter.hides_information(environment)
                self._running.append(Worker(rank, process, is_quiet, log, path))
        finally:  # even if a later worker could not start, because `_stop` waits for all of these
            for worker in self._running:
                self._watch(worker)

    def _watch(self, worker: Worker) -> None:
        """Start the threads that report the worker's end and copy its output."""
        has_prefix = self.num_workers > 1 or self.control
        for stream, descriptor in ((worker.process.stdout, 1), (worker.process.stderr, 2)):
            if stream is not None:
                prefix = f"[worker {worker.rank}] ".encode() if has_prefix else b""
                relay = Relay(descriptor, self._console, prefix, worker)
                worker.readers.append(start_thread(relay.copy, stream, worker.ended))
        self._threads += [*worker.readers, start_thread(report_end, worker, self._events)]

    def _supervise(self, deadline: float | None) -> int:
        """Wait until all workers have succeeded, or until there is a reason to stop the job."""
        code = 0
        while self._running:
            event = self._next_event(deadline)
            if event in PASSED_ON:
                self._pass_on(event)
                continue
            if not isinstance(event, Worker):
                return self._stop_for(event)
            end = self._reap(event)
            if end.code == EXIT_STOP_REQUESTED:  # the others may be writing the backup
                code = EXIT_STOP_REQUESTED
            elif end.code != 0:
                self._first = end
                stopping = ", stopping the others" if self._running else ""
                self._console.say(f"worker {end.rank} ended with {end.cause}{stopping}")
                return end.code if end.code > 0 else 128 - end.code
        if code == EXIT_STOP_REQUESTED:
            self._console.say(f"the workers were asked to end (exit status {EXIT_STOP_REQUESTED})")
        return code

    def _pass_on(self, number: signal.Signals) -> None:
        """Send a signal to the workers, but not to the processes that they started."""
        self._is_passed_on = True
        self._console.say(f"{number.name}, passed on to all workers")
        for worker in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, number)

    def _stop(self) -> None:
        """Stop the workers with SIGTERM; after the grace time or a SIGINT, with SIGKILL."""
        for worker in self._running:
            worker.is_stopped = True
            worker.signal_group(signal.SIGTERM)
        deadline, is_killed = time.monotonic() + self.grace, False
        while self._running:
            event = self._next_event(deadline)
            if isinstance(event, Worker):
                self._reap(event)
                continue
            if event is None and is_killed:  # for example, they wait for a file system
                ids = ", ".join(f"{each.rank} (pid {each.process.pid})" for each in self._running)
                self._console.say(f"SIGKILL does not end worker {ids}: leaving it")
                self._is_stopped, self._running = True, []
                return
            if isinstance(event, StopRequest):  # for example, a worker on another host was lost
                if not is_killed:
                    deadline = min(deadline, time.monotonic() + event.grace)
                continue
            if event in PASSED_ON:
                continue
            self._is_stopped |= event is not None
            if isinstance(event, signal.Signals):
                self._signal = event
            if event is None or event is signal.SIGINT:
                deadline, is_killed = time.monotonic() + _SECONDS_TO_DIE, True
                for worker in self._running:
                    worker.signal_group(signal.SIGKILL)

    def _next_event(self, deadline: float | None) -> Worker | signal.Signals | StopRequest | None:
        """Return the next event, or None if there is no event before the deadline."""
        until = math.inf if deadline is None else deadline
        while True:
            remaining = max(0.0, until - time.monotonic())
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=min(remaining, HEARTBEAT_SECONDS))
                if not isinstance(event, Worker) or event in self._running:
                    return event
            if ended := next(filter(has_ended, self._running), None):  # its thread did not report
                return ended
            if time.monotonic() >= until:
                return None

    def _reap(self, worker: Worker) -> failures.ProcessExit:
        self._running.remove(worker)
        end = worker.reap()
        self._ends.append(end)
        return end
