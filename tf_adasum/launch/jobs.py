"""A job from start to end: its arguments are checked, ports and files found, workers run.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Sequence

from tf_adasum.cluster import free_ports, secret
from tf_adasum.cluster.administration import START_TIMEOUT
from tf_adasum.launch.environments import worker_environments
from tf_adasum.launch.nodes import Nodes
from tf_adasum.launch.output import logs_in
from tf_adasum.launch.processes import Crew, Ending, run_group
from tf_adasum.launch.status import Board

GRACE_SECONDS = 5.0
# How long restarted workers wait for those of other machines, which have to notice the failure
# first. The environment can set another time.
_SECONDS_TO_MEET_AGAIN = "180"


def launch(
    command: Sequence[str],
    num_workers: int,
    devices_per_worker: int | None = None,
    timeout: float | None = None,
    *,
    grace: float = GRACE_SECONDS,
    max_restarts: int = 0,
    nodes: Nodes | None = None,
    log_dir: str | None = None,
    verbose: bool = False,
    status: bool = False,
) -> int:
    """Run `num_workers` copies of `command` on this machine until all of them have ended.

    With one worker and neither `log_dir` nor `status` the command inherits stdin, stdout and
    stderr. Else stdin is empty and every line of output is written to file descriptor 1 or 2, of
    several workers with the prefix ``[worker i]``, which has colors on a terminal. TensorFlow's
    messages below the level of errors are left out, unless `verbose` or ``TF_CPP_MIN_LOG_LEVEL``
    asks for them.

    On one machine the workers' ports lie outside of the range from which the system gives ports to
    others, and are held until all workers have ended: see `free_ports.held`. What uses them sets
    SO_REUSEADDR, as TensorFlow's server does. Workers get a random ``TF_ADASUM_SECRET`` in common,
    unless the environment gives a secret: nobody else can join the rendezvous. On several
    machines, on each of which this is called, workers find their ports themselves, and have no
    secret but that of the environment.

    The first worker that fails, a signal to this process (SIGINT, SIGTERM, SIGHUP) or the timeout
    stops the job: SIGTERM to every worker's process group, then SIGKILL after `grace` seconds (30
    at least after SIGTERM to this process or the end of its reader, for a backup), or at once on
    SIGINT. SIGUSR1 is passed on to the workers and stops nothing; a worker that ends with 75, as
    those that made a backup when asked to stop, does not stop the others. When a worker ends, the
    processes that it left behind in its group are killed. If this process is killed, Linux kills
    the workers (not the processes they started).

    With `max_restarts` the failure of a worker starts all of them again, on new ports, after a
    second; they see which start it is as ``TF_ADASUM_RESTART_COUNT``, 0 for the first. A signal to
    this process, the timeout, or a worker's exit status 2 (wrong usage) or 75 are final. On several
    machines the workers of the others also end, because they have lost one, and each machine counts
    its own restarts.

    Args:
        command: the complete argument vector of a worker, e.g. ``[sys.executable, "train.py"]``.
        num_workers: number of workers, at least 1.
        devices_per_worker: devices of each worker, at least 1; see `worker_environments`. Defaults
            to None: the visible GPUs divided evenly, else one CPU device.
        timeout: seconds after which the job is stopped, restarts included. Defaults to None: no
            limit.
        grace: seconds between SIGTERM and SIGKILL. Defaults to 5.
        max_restarts: how often the workers are started again at most, all of them. Defaults to 0.
        nodes: the machines, each of which has `num_workers`. Defaults to None: this one.
        log_dir: directory for a file with the output of each worker, "worker-0.log" and so on,
            which is appended to. Defaults to None: no files.
        verbose: whether TensorFlow is to say all. Defaults to False.
        status: whether to show what each worker does: a table below the output on a terminal, else
            a line every 30 seconds. Defaults to False.

    Returns:
        The exit status of the last start: 0 when every worker ended with 0; the code of the first
        worker that failed (128 + n when signal n ended it); 128 + n when this process received
        signal n (SIGPIPE when its output was closed); 124 after `timeout`; 75 when workers ended
        with that, asked by a signal to them or to this process.

    Raises:
        ValueError: an argument cannot be used, there are too few GPUs, or `log_dir` cannot be
            written. Nothing was started.
        OSError: a worker could not be started. The workers already started have been stopped.

    Example:
        >>> launch(["sh", "-c", "exit 3"], num_workers=1)
        3
    """
    return run_job(
        command,
        num_workers,
        devices_per_worker,
        timeout,
        grace=grace,
        max_restarts=max_restarts,
        nodes=nodes,
        log_dir=log_dir,
        verbose=verbose,
        status=status,
    ).code


def run_job(
    command: Sequence[str],
    num_workers: int,
    devices_per_worker: int | None = None,
    timeout: float | None = None,
    *,
    grace: float = GRACE_SECONDS,
    max_restarts: int = 0,
    nodes: Nodes | None = None,
    log_dir: str | None = None,
    verbose: bool = False,
    status: bool = False,
    is_heard: bool = False,
) -> Ending:
    """Do as `launch`, and return how it ended.

    Args:
        is_heard: whether the output of a single worker also goes through this process. Defaults to
            False. The others are those of `launch`.
    """
    check(command, num_workers, timeout, max_restarts)
    nodes = nodes or Nodes()
    ranks, in_all = nodes.ranks(num_workers), nodes.total(num_workers)
    ports_to_try = free_ports.candidates()  # one for all starts: a restart has other ports

    @contextlib.contextmanager
    def environments_of(restart: int) -> Iterator[list[dict[str, str]]]:
        with free_ports.held(num_workers if nodes.count == 1 else 0, ports_to_try) as own:
            addresses = [f"127.0.0.1:{port}" for port in own] or [""] * num_workers
            environments = worker_environments(
                addresses, devices_per_worker, nodes=nodes, verbose=verbose
            )
            told = {"TF_ADASUM_RESTART_COUNT": str(restart)}
            if 1 < in_all == num_workers:
                told |= _new_secret()
            if in_all > num_workers and restart and not os.environ.get(START_TIMEOUT):
                told[START_TIMEOUT] = _SECONDS_TO_MEET_AGAIN
            yield [{**each, **told} for each in environments]

    logs = logs_in(log_dir, ranks)
    is_heard = is_heard or in_all > 1 or bool(logs) or status
    with tempfile.TemporaryDirectory() if status else contextlib.nullcontext() as folder:
        crew = Crew(ranks, in_all, logs, is_heard, Board(folder, ranks) if folder else None)
        return run_group(command, crew, environments_of, timeout, grace, max_restarts)


def check(
    command: Sequence[str], num_workers: int, timeout: float | None, max_restarts: int
) -> None:
    """Check the arguments of `launch` that depend on nothing else.

    Raises:
        ValueError: if one cannot be used. The message names the option and the value.
    """
    if not command:
        raise ValueError("command: expected at least a program to run. Received: an empty list")
    if timeout is not None and not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"--timeout: expected more than 0 and at most {threading.TIMEOUT_MAX:.0f} seconds. "
            f"Received: timeout={timeout}"
        )
    if max_restarts < 0:
        raise ValueError(
            f"--max-restarts: expected 0 or more. Received: max_restarts={max_restarts}"
        )
    if num_workers < 1:
        raise ValueError(f"-n: expected at least 1 worker. Received: num_workers={num_workers}")


def _new_secret() -> dict[str, str]:
    """Return a random secret for the workers, see `cluster.secret`; none if the user gave one."""
    is_given = secret.NAME in os.environ or secret.FILE_NAME in os.environ
    return {} if is_given else {secret.NAME: secrets.token_hex(32)}
