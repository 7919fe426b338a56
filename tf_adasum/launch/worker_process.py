"""One worker process of the launcher: its signals, its end, and the threads that wait for it.

Uses only the standard library.
"""

import contextlib
import ctypes
import dataclasses
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_adasum.cluster import error_file
from tf_adasum.cluster.timeouts import MOMENT_SECONDS
from tf_adasum.launch import failures
from tf_adasum.launch.cpu_shares import bind
from tf_adasum.launch.output import Log

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None)  # loaded here, not after a fork


def open_standard_streams() -> None:
    """Open /dev/null as stdin, stdout and stderr if they are closed.

    Otherwise a socket or file of this process or of a worker would get the number of a standard
    stream, and output would go into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


@dataclasses.dataclass(eq=False)
class Worker:
    """One running worker: its process, and the threads that read its output."""

    rank: int
    process: Any
    is_quiet: bool = False
    log: Log | None = None
    error_path: str = ""
    is_stopped: bool = False
    stderr_tail: failures.StderrTail = dataclasses.field(default_factory=failures.StderrTail)
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    readers: list[threading.Thread] = dataclasses.field(default_factory=list)

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker and its children; only before the worker is reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def reap(self) -> failures.ProcessExit:
        """Kill the processes that the ended worker left behind; return how the worker ended."""
        # Until `wait` the worker is a zombie, so the group id cannot belong to anyone else yet.
        self.signal_group(signal.SIGKILL)
        code = self.process.wait()
        self.ended.set()
        # The worker's last lines should precede our message about its end. But do not wait long if
        # nothing reads our output.
        limit = time.monotonic() + MOMENT_SECONDS
        for reader in self.readers:
            reader.join(max(0.0, limit - time.monotonic()))
        path = self.log.path if self.log else ""
        tail = self.stderr_tail if self.readers else None
        report = error_file.read(self.error_path)
        hides_loss = code == 0 and report is not None and report.is_because_of_another
        code = 1 if hides_loss else code
        return failures.ProcessExit(
            self.rank, code, tail, path, self.is_stopped, report, hides_loss=hides_loss
        )


def has_ended(worker: Worker, wait_option: int = os.WNOHANG) -> bool:
    """Return whether a worker has ended, without reaping it, which would free its group id."""
    try:
        options = os.WEXITED | os.WNOWAIT | wait_option
        return os.waitid(os.P_PID, worker.process.pid, options) is not None
    except ChildProcessError:  # another part of this process has reaped it
        return True


def report_end(worker: Worker, events: queue.SimpleQueue) -> None:
    """Wait until the worker ends."""
    if has_ended(worker, 0):
        events.put(worker)


def start_process(
    command: Sequence[str], environment: Mapping[str, str], cpus: set[int], captures_output: bool
) -> subprocess.Popen:
    """Start the process of a worker.

    Args:
        command: the argument vector.
        environment: its complete environment.
        cpus: the CPUs on which it runs; empty for the CPUs of this process.
        captures_output: whether its output goes into pipes. Otherwise it inherits our streams.
    """
    streams: dict[str, int] = {}  # a worker inherits our streams
    if captures_output:
        pipe = subprocess.PIPE
        streams = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
    parent = os.getpid()

    def begin() -> None:  # in the new process, before it runs the command
        end_with_parent(parent)
        bind(cpus)

    return subprocess.Popen(
        command,
        env=dict(environment),
        bufsize=0,
        start_new_session=True,
        preexec_fn=begin,
        **streams,
    )


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when the thread that started this process ends.

    Args:
        parent: the pid of the parent process, even if it has already ended.
        number: the signal.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent ended before the request was made
        os.kill(os.getpid(), number)


def start_thread(target: Callable, *arguments) -> threading.Thread:
    """Start a thread that does not keep this process alive."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread
