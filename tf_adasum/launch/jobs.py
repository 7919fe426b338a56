"""Run one job: check its arguments, find ports and files, and run the workers.

Uses only the standard library.
"""

import contextlib
import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Sequence

from tf_adasum.cluster import ports
from tf_adasum.environment_variables import SECRET, SECRET_FILE, START_TIMEOUT
from tf_adasum.errors import LAUNCHER, RESTARTS
from tf_adasum.launch.cpu_shares import BIND_TO, cpu_shares
from tf_adasum.launch.environments import visible_gpus, worker_environments
from tf_adasum.launch.nodes import Nodes
from tf_adasum.launch.output import Log, unusable_folder
from tf_adasum.launch.processes import RESTART_COUNT, Control, Ending, Job

GRACE_SECONDS = 5.0
# How long restarted workers wait for the workers of other machines, which have to detect the
# failure first, and an elastic job for enough hosts. The environment can set another time.
SECONDS_TO_MEET = 180.0


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
    bind_to: str = "cores",
    captures_output: bool = False,
    control: Control | None = None,
) -> Ending:
    """Run `num_workers` copies of `command` on this machine until all of them have ended.

    With one worker and no `log_dir`, the command inherits stdin, stdout and
    stderr. Otherwise, stdin is empty, and every line of output is written to file descriptor 1 or
    2. If there are several workers, lines have the prefix ``[worker i]``. TensorFlow's messages
    below the level of errors are left out, unless `verbose` or ``TF_CPP_MIN_LOG_LEVEL`` asks for
    them.

    On one machine, the workers' ports are held until all workers have ended, see
    `ports.free_ports`. A program that opens a held port has to set SO_REUSEADDR, as TensorFlow's
    server does. All workers get the
    same random ``TF_ADASUM_SECRET``, unless the environment gives a secret, so no other process can
    join the rendezvous. On several machines, call this function on each machine. Workers then find
    their ports themselves, and only the environment can give them a secret.

    The job stops if a worker fails, if this process receives SIGINT, SIGTERM or SIGHUP, or at the
    timeout. Every worker's process group then receives SIGTERM, and after `grace` seconds SIGKILL.
    After SIGTERM to this process, or if the output of this process is closed, the workers have at
    least 30 seconds for a backup. SIGINT while the job stops kills the workers at once. SIGUSR1 is
    passed on to the workers and does not stop the job. If a worker exits with status 75, because it
    was asked to stop and has made a backup, the other workers continue. When a worker ends, the
    processes that it left behind in its process group are killed. If this process is killed, Linux
    kills the workers, but not the processes that they started.

    If a worker fails, all workers are started again after a second, on new ports, at most
    `max_restarts` times. The workers read the number of restarts from ``TF_ADASUM_RESTART_COUNT``.
    There is no restart after a signal to this process, after the timeout, or if a worker exits with
    status 2 (wrong usage) or 75. On several machines, the workers of the other machines also end,
    because they have lost a worker. Each machine counts its own restarts.

    Args:
        command: the complete argument vector of a worker, e.g. ``[sys.executable, "train.py"]``.
        num_workers: number of workers, at least 1.
        devices_per_worker: number of devices of each worker, at least 1; see `worker_environments`.
            Defaults to None: an equal share of the visible GPUs, or one CPU device without GPUs.
        timeout: seconds after which the job is stopped, including all restarts. Defaults to None:
            no limit.
        grace: seconds between SIGTERM and SIGKILL. Defaults to 5.
        max_restarts: how often all workers are started again at most. Defaults to 0.
        nodes: the machines, with the rank of this machine. Defaults to None: only this machine.
        log_dir: directory of the files "worker-0.log" and so on, to which the output of each worker
            is appended. Defaults to None: no files.
        verbose: whether TensorFlow prints all its messages. Defaults to False.
        bind_to: "cores": without GPUs, each worker runs on its own share of the CPUs of this
            process, see `cpu_shares`. "none": all workers run on all these CPUs. Defaults to
            "cores".
        captures_output: whether the output of a single worker also goes through this process.
            Defaults to False.
        control: of another part of the launcher that may stop the workers. Defaults to None.

    Returns:
        The exit status of the last start, an `int`: 0 if every worker exited with status 0; the
        status of the first worker that failed, or 128 + n if signal n ended this worker; 128 + n if
        this process received signal n (SIGPIPE if its output was closed); 124 after `timeout`; 75
        if workers exited with status 75 because a signal asked them to stop.

    Raises:
        ValueError: if an argument cannot be used, there are too few GPUs, or `log_dir` cannot be
            written. No worker was started.
        OSError: if a worker could not be started. Workers that had started were stopped.

    Example:
        >>> launch(["sh", "-c", "exit 3"], num_workers=1)
        3
    """
    check(command, num_workers, timeout, max_restarts)
    if bind_to not in BIND_TO:
        raise ValueError(f"--bind-to: expected cores or none. Received: bind_to={bind_to!r}")
    is_bound = bind_to == "cores" and num_workers > 1 and not visible_gpus(os.environ)
    nodes = nodes or Nodes()
    earlier_starts = control.earlier_starts if control else 0
    ranks, in_all = nodes.ranks(num_workers), nodes.total(num_workers)

    @contextlib.contextmanager
    def environments_of(restart: int) -> Iterator[list[dict[str, str]]]:
        with ports.free_ports(num_workers if nodes.count == 1 else 0) as own:
            addresses = [f"127.0.0.1:{port}" for port in own] or [""] * num_workers
            environments = worker_environments(
                addresses, devices_per_worker, nodes=nodes, verbose=verbose
            )
            restart += earlier_starts
            added = {RESTART_COUNT: str(restart)}
            if control is not None or restart < max_restarts:
                added[LAUNCHER] = RESTARTS
            if 1 < in_all == num_workers and not {SECRET, SECRET_FILE} & os.environ.keys():
                added[SECRET] = secrets.token_hex(32)
            # In the first round of an elastic job, other hosts may still import TensorFlow.
            is_slow = restart or control is not None
            if in_all > num_workers and is_slow and not os.environ.get(START_TIMEOUT):
                added[START_TIMEOUT] = f"{SECONDS_TO_MEET:g}"
            yield [{**each, **added} for each in environments]

    with contextlib.ExitStack() as until_all_are_open:
        opened = (contextlib.closing(Log(log_dir, rank)) for rank in ranks if log_dir is not None)
        logs = [until_all_are_open.enter_context(each) for each in opened]
        until_all_are_open.pop_all()
    captures_output = captures_output or in_all > 1 or bool(logs)
    cpus = cpu_shares(num_workers) if is_bound else []
    job = Job(command, ranks, in_all, environments_of, grace, logs, captures_output, cpus, control)
    return job.run(timeout, max_restarts)


def check(
    command: Sequence[str], num_workers: int, timeout: float | None, max_restarts: int
) -> None:
    """Check the arguments of `launch` that do not depend on the machine.

    Raises:
        ValueError: if an argument cannot be used. The message names the option and the value.
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


def check_machine(num_workers: int, devices_per_worker: int | None, log_dir: str | None) -> None:
    """Check the arguments of `launch` that depend on this machine.

    Raises:
        ValueError: if an argument cannot be used on this machine.
    """
    worker_environments([""] * num_workers, devices_per_worker)
    if log_dir is not None:
        try:
            os.makedirs(log_dir, exist_ok=True)
            with tempfile.TemporaryFile(dir=log_dir):
                pass
        except OSError as error:
            raise unusable_folder(log_dir, error) from error
