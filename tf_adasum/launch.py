"""Start N local worker processes of one training script, as ``torchrun`` does for PyTorch.

    tf-adasum-launch -n 4 train.py --epochs 3
    tf-adasum-launch -n 2 --devices-per-worker 2 -m package.train --epochs 3

Reading order: `main` (command line) -> `launch` (the whole life of a job) -> `worker_environments`
(what each worker is told) -> `_Job` (start, supervise, stop) -> `_Console` and `_relay` (output).

Who does what: the main thread starts, signals and reaps the workers. Every other thread only
reads a pipe or waits for one process, and reports to the main thread through one queue.

Standard library only: the launcher is ready at once and never initialises a GPU itself.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import queue
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

PROGRAM = "tf-adasum-launch"
EXIT_USAGE = 2
EXIT_TIMEOUT = 124  # as coreutils' `timeout`
GRACE_SECONDS = 5.0
_LAST_WORDS_SECONDS = 0.5  # how long to wait for the output of a worker that ended

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here, not after a fork

# One piece of output: up to a newline, or up to a carriage return, which only the *next* byte
# tells from the first half of "\r\n".
_PIECE = re.compile(rb"[^\r\n]*(?:\r?\n|\r(?=[^\n]))")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``tf-adasum-launch`` command line.

    Args:
        arguments: the command line after the program's name; default ``sys.argv[1:]``.

    Returns:
        The exit code of `launch`.

    Raises:
        SystemExit: with code 2 and a message on stderr when the arguments cannot be used.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    target = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not target:
        parser.error("nothing to run: give a script, or -m and a module")
    if not options.module and not os.path.isfile(target[0]):
        parser.error(f"script not found: {target[0]!r} (looked in {os.getcwd()})")
    command = [sys.executable, "-u", *(["-m"] if options.module else []), *target]
    try:
        return launch(command, options.workers, options.devices_per_worker, options.timeout)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:  # while the last output was written; the workers have ended
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    """Build the parser; everything from the script's name on belongs to the script."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s -n N [--devices-per-worker K] [--timeout SECONDS] "
        "(SCRIPT | -m MODULE) [ARGS ...]",
        description="Start N local workers of a training script and connect them by TF_CONFIG.",
        epilog="example: %(prog)s -n 4 train.py --lr 0.1    starts 4 workers of "
        "`python train.py --lr 0.1`; whatever follows the script's name goes to the script. "
        "The exit code is 0, the code of the first worker that failed, 128+n for signal n, "
        "124 after --timeout, or 2 when nothing could be started.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n", "--workers", type=int, required=True, metavar="N", help="number of workers"
    )
    parser.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="K",
        help="GPUs of each worker when GPUs are visible, else logical CPU devices of each worker "
        "(default: the visible GPUs divided evenly, else one CPU device)",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="stop all workers after that time"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m")
    # One REMAINDER and no separate `script` positional: argparse would take a "--" out of the
    # script's own arguments.
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def launch(
    command: Sequence[str],
    num_workers: int,
    devices_per_worker: int | None = None,
    timeout: float | None = None,
    *,
    grace: float = GRACE_SECONDS,
) -> int:
    """Run `num_workers` copies of `command` on this machine until all of them have ended.

    With one worker the command inherits stdin, stdout and stderr. With more, stdin is empty and
    every line of output is written to file descriptor 1 or 2 with the prefix ``[worker i]``.

    The first worker that fails, a signal to this process (SIGINT, SIGTERM, SIGHUP) or the timeout
    stops the job: SIGTERM to every worker's process group, then SIGKILL after `grace` seconds, or
    at once on SIGINT. The end of a worker is also the end of the processes it left behind in its
    group. If this process is killed, Linux kills the workers (not the processes they started).

    Args:
        command: the complete argument vector of a worker, e.g. ``[sys.executable, "train.py"]``.
        num_workers: number of workers, at least 1.
        devices_per_worker: devices each worker shall use, at least 1; see `worker_environments`.
        timeout: seconds after which the job is stopped; None for no limit.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        0 when every worker ended with 0; the code of the first worker that failed (128 + n when
        signal n ended it); 128 + n when this process received signal n (SIGPIPE when its output
        was closed); 124 after `timeout`.

    Raises:
        ValueError: an argument cannot be used, or there are too few GPUs. Nothing was started.
        OSError: a worker could not be started. The workers already started have been stopped.

    Example:
        >>> launch([sys.executable, "-c", "raise SystemExit(3)"], num_workers=1)
        3
    """
    if not command:
        raise ValueError("command: expected at least a program to run. Received: an empty list")
    if timeout is not None and not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"--timeout: expected more than 0 and at most {threading.TIMEOUT_MAX:.0f} seconds. "
            f"Received: timeout={timeout}"
        )
    with _reserved_addresses(num_workers) as addresses:
        environments = worker_environments(addresses, devices_per_worker)
    job = _Job(command, environments, grace)
    with _signals_sent_to(job.events):
        code = job.run(timeout)
    # Handlers are restored, so an interrupt ends this wait for a reader of our output.
    job.drain()
    return code


def worker_environments(
    addresses: Sequence[str],
    devices_per_worker: int | None = None,
    environment: Mapping[str, str] | None = None,
    find_gpus: Callable[[Mapping[str, str]], list[str]] | None = None,
) -> list[dict[str, str]]:
    """Return the environment of every worker.

    Args:
        addresses: ``host:port`` of every worker. A single worker gets no ``TF_CONFIG``, not even
            an inherited one: it is not part of a cluster.
        devices_per_worker: if given, told to the workers as ``TF_ADASUM_DEVICES_PER_WORKER``.
        environment: what the workers inherit; default ``os.environ``.
        find_gpus: lists the visible GPUs; default `visible_gpus`.

    Returns:
        One complete environment per worker, in the order of `addresses`.

    Raises:
        ValueError: `devices_per_worker` is below 1, or there are too few GPUs.
    """
    if devices_per_worker is not None and devices_per_worker < 1:
        raise ValueError(
            "--devices-per-worker: expected at least 1. "
            f"Received: devices_per_worker={devices_per_worker}"
        )
    base = dict(os.environ if environment is None else environment)
    base.pop("TF_CONFIG", None)
    base.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    base.update(TF_ADASUM_LAUNCHER="1", PYTHONUNBUFFERED="1")
    if devices_per_worker is not None:
        base["TF_ADASUM_DEVICES_PER_WORKER"] = str(devices_per_worker)

    environments = [dict(base) for _ in addresses]
    if len(addresses) > 1:
        for index, worker in enumerate(environments):
            task = {"type": "worker", "index": index}
            worker["TF_CONFIG"] = json.dumps({"cluster": {"worker": [*addresses]}, "task": task})
    if len(addresses) > 1 or devices_per_worker is not None:
        gpus = (find_gpus or visible_gpus)(base)
        if gpus:
            shares = _gpu_shares(gpus, len(addresses), devices_per_worker)
            for worker, share in zip(environments, shares, strict=True):
                worker["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return environments


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs CUDA would show, as entries for ``CUDA_VISIBLE_DEVICES``."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(_count_gpus())]
    gpus = []
    for entry in (part.strip() for part in chosen.split(",")):
        if not entry or entry.startswith("-") or entry == "NoDevFiles":
            break  # CUDA ignores everything from the first invalid entry on
        gpus.append(entry)
    return gpus


def _count_gpus() -> int:
    """Count the GPUs `nvidia-smi` lists; 0 without a working driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def _gpu_shares(gpus: list[str], num_workers: int, per_worker: int | None) -> list[list[str]]:
    """Give worker i the i-th slice of the GPUs: `per_worker` each, or as many as divide evenly."""
    size = per_worker or max(1, len(gpus) // num_workers)
    if len(gpus) < num_workers * size:
        raise ValueError(
            f"-n / --devices-per-worker: expected {num_workers * size} GPUs for {num_workers} "
            f"workers with {size} each. Received: {len(gpus)} visible GPUs ({','.join(gpus)}). "
            "Lower -n or --devices-per-worker, or set CUDA_VISIBLE_DEVICES= to use CPUs"
        )
    return [gpus[index * size : (index + 1) * size] for index in range(num_workers)]


@contextlib.contextmanager
def _reserved_addresses(count: int) -> Iterator[list[str]]:
    """Yield `count` distinct free local addresses, held until the block ends."""
    if count < 1:
        raise ValueError(f"-n: expected at least 1 worker. Received: num_workers={count}")
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


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


class _Worker:
    """One running worker: its process, and the threads that read its output."""

    def __init__(self, index: int, process: subprocess.Popen):
        self.index = index
        self.process = process
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
        return code


class _Job:
    """The workers of one launch, from their start to the end of the last one."""

    def __init__(self, command: Sequence[str], environments: list[dict[str, str]], grace: float):
        self.events: queue.SimpleQueue[_Worker | signal.Signals] = queue.SimpleQueue()
        self._command = list(command)
        self._environments = environments
        self._grace = grace
        self._console = _Console(self.events)
        self._running: list[_Worker] = []
        self._threads: list[threading.Thread] = []

    def run(self, timeout: float | None) -> int:
        """Start the workers, supervise them, stop what is left, and return the exit code."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self._start()
            return self._supervise(deadline)
        finally:
            self._stop()

    def drain(self) -> None:
        """Wait until all output of the ended workers has been written."""
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        # All processes before the first thread: `preexec_fn` runs Python between fork and exec,
        # where a lock held by another thread would never be released.
        piped = len(self._environments) > 1
        try:
            for index, environment in enumerate(self._environments):
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    stdin=subprocess.DEVNULL if piped else None,
                    stdout=subprocess.PIPE if piped else None,
                    stderr=subprocess.PIPE if piped else None,
                    bufsize=0,
                    start_new_session=True,
                    preexec_fn=_death_with_parent(),
                )
                self._running.append(_Worker(index, process))
        finally:  # also when a later one could not start: `_stop` waits for their end
            for worker in self._running:
                self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        """Start the threads that report the worker's end and copy its output."""
        for stream, descriptor in ((worker.process.stdout, 1), (worker.process.stderr, 2)):
            if stream is not None:
                worker.readers.append(_thread(_relay, worker, stream, descriptor, self._console))
        self._threads += worker.readers
        _thread(_report_end, worker, self.events)

    def _supervise(self, deadline: float | None) -> int:
        """Wait until all workers ended with 0, or for the first reason to stop the job."""
        while self._running:
            event = self._next_event(deadline)
            if event is None:
                self._console.say("the time given by --timeout is over, stopping all workers")
                return EXIT_TIMEOUT
            if isinstance(event, signal.Signals):
                self._console.say(f"{event.name}, stopping all workers")
                return 128 + event
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
            elif event is None or event is signal.SIGINT:
                break
        for worker in self._running:
            worker.signal_group(signal.SIGKILL)
        while self._running:
            event = self.events.get()
            if isinstance(event, _Worker):
                self._reap(event)

    def _next_event(self, deadline: float | None) -> _Worker | signal.Signals | None:
        """Return the next event, or None when the deadline comes first."""
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self.events.get(timeout=wait)
        except queue.Empty:
            return None

    def _reap(self, worker: _Worker) -> int:
        self._running.remove(worker)
        code = worker.reap()
        # Its last words come before what we say about its end; but nobody waits for a reader of
        # our output who does not read.
        limit = time.monotonic() + _LAST_WORDS_SECONDS
        for reader in worker.readers:
            reader.join(max(0.0, limit - time.monotonic()))
        return code


class _Console:
    """Writes whole lines to our stdout and stderr, one at a time."""

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
    the other workers only the last state is shown, when the line is complete.
    """
    prefix = b"[worker %d] " % worker.index
    pending = b""
    for chunk in _chunks(stream, worker.ended):
        pending += chunk
        end = 0
        for match in _PIECE.finditer(pending):
            end = match.end()
            if worker.index == 0 or match[0].endswith(b"\n"):
                console.write(descriptor, prefix, match[0])
        pending = pending[end:]
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


if __name__ == "__main__":
    sys.exit(main())
