"""Start N local worker processes of one training script, as ``torchrun`` does for PyTorch.

    tf-adasum-launch -n 4 train.py --epochs 3
    tf-adasum-launch -n 2 --devices-per-worker 2 -m package.train --epochs 3

Reading order: `main` (command line) -> `launch` (a job from start to end) -> `worker_environments`
(what each worker is told, GPUs included). `cluster.free_ports` finds the workers' ports and holds
them, `processes` runs the processes, `noise` knows which lines of TensorFlow's are left out.

Standard library only: the launcher is ready at once and never initialises a GPU itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from tf_adasum.cluster import detection, free_ports, secret
from tf_adasum.launch import noise
from tf_adasum.launch.processes import PROGRAM, run_group

GRACE_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``tf-adasum-launch`` command line.

    Args:
        arguments: the command line after the program's name. Defaults to ``sys.argv[1:]``.

    Returns:
        The exit code of `launch`.

    Raises:
        SystemExit: with code 2 and a message on stderr when the arguments cannot be used.

    Example:
        >>> main(["-n", "4", "train.py"])  # starts processes  # doctest: +SKIP
        0
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
        return launch(
            command,
            options.workers,
            options.devices_per_worker,
            options.timeout,
            max_restarts=options.max_restarts,
        )
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:  # while the last output was written; the workers have ended
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    """Build the parser; everything from the script's name on belongs to the script."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s -n N [--devices-per-worker K] [--timeout SECONDS] [--max-restarts R] "
        "(SCRIPT | -m MODULE) [ARGS ...]",
        description="Start N local workers of a training script and connect them by TF_CONFIG.",
        epilog="example: %(prog)s -n 4 train.py --lr 0.1    starts 4 workers of "
        "`python train.py --lr 0.1`; whatever follows the script's name goes to the script. "
        "The exit code is 0, the code of the first worker that failed, 128+n for signal n, "
        "124 after --timeout, or 2 when nothing could be started. TF_CPP_MIN_LOG_LEVEL=0 shows all "
        "that TensorFlow says, not only errors.",
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
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="R",
        help="when a worker fails, start all of them again, at most R times (default: 0); for "
        "scripts that go on from a backup or checkpoint",
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
    max_restarts: int = 0,
) -> int:
    """Run `num_workers` copies of `command` on this machine until all of them have ended.

    With one worker the command inherits stdin, stdout and stderr. With more, stdin is empty and
    every line of output is written to file descriptor 1 or 2 with the prefix ``[worker i]``. What
    TensorFlow says below an error is left out, unless ``TF_CPP_MIN_LOG_LEVEL`` is set.

    The workers' ports lie outside of the range from which the system gives ports to others, and are
    held until all workers have ended: see `free_ports.held`. What uses them sets SO_REUSEADDR, as
    TensorFlow's server does. Workers get a random ``TF_ADASUM_SECRET`` in common, unless the
    environment gives a secret: nobody else can take part when they meet.

    The first worker that fails, a signal to this process (SIGINT, SIGTERM, SIGHUP) or the timeout
    stops the job: SIGTERM to every worker's process group, then SIGKILL after `grace` seconds, or
    at once on SIGINT. When a worker ends, the processes that it left behind in its group are
    killed. If this process is killed, Linux kills the workers (not the processes they started).

    With `max_restarts` the failure of a worker starts all of them again, on new ports, after a
    second; they see which start it is as ``TF_ADASUM_RESTART_COUNT``, 0 for the first. A signal to
    this process, the timeout, or a worker's exit code 2 (wrong usage) are final.

    Args:
        command: the complete argument vector of a worker, e.g. ``[sys.executable, "train.py"]``.
        num_workers: number of workers, at least 1.
        devices_per_worker: devices of each worker, at least 1; see `worker_environments`. Defaults
            to None: the visible GPUs divided evenly, else one CPU device.
        timeout: seconds after which the job is stopped, restarts included. Defaults to None: no
            limit.
        grace: seconds between SIGTERM and SIGKILL. Defaults to 5.
        max_restarts: how often the workers are started again at most, all of them. Defaults to 0.

    Returns:
        The exit code of the last start: 0 when every worker ended with 0; the code of the first
        worker that failed (128 + n when signal n ended it); 128 + n when this process received
        signal n (SIGPIPE when its output was closed); 124 after `timeout`.

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
    if max_restarts < 0:
        raise ValueError(
            f"--max-restarts: expected 0 or more. Received: max_restarts={max_restarts}"
        )

    if num_workers < 1:
        raise ValueError(f"-n: expected at least 1 worker. Received: num_workers={num_workers}")
    ports_to_try = free_ports.candidates()  # one for all starts: a restart has other ports

    @contextlib.contextmanager
    def environments_of(restart: int) -> Iterator[list[dict[str, str]]]:
        with free_ports.held(num_workers, ports_to_try) as own:
            addresses = [f"127.0.0.1:{port}" for port in own]
            environments = worker_environments(addresses, devices_per_worker)
            told = {"TF_ADASUM_RESTART_COUNT": str(restart), **_new_secret(num_workers)}
            yield [{**each, **told} for each in environments]

    return run_group(command, environments_of, timeout, grace, max_restarts)


def _new_secret(num_workers: int) -> dict[str, str]:
    """Return a random secret for the workers, see `cluster.secret`; none if the user gave one."""
    is_given = secret.NAME in os.environ or secret.FILE_NAME in os.environ
    return {} if is_given or num_workers == 1 else {secret.NAME: secrets.token_hex(32)}


def worker_environments(
    addresses: Sequence[str],
    devices_per_worker: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, str]]:
    """Return the environment of every worker.

    Args:
        addresses: ``host:port`` of every worker. A single worker gets no ``TF_CONFIG``, not even
            an inherited one, and joins nobody, whoever has started the launcher.
        devices_per_worker: told to the workers as ``TF_ADASUM_DEVICES_PER_WORKER``. Defaults to
            None: they are told nothing.
        environment: what the workers inherit. Defaults to ``os.environ``.

    Returns:
        One complete environment per worker, in the order of `addresses`.

    Raises:
        ValueError: `devices_per_worker` is below 1, or there are too few GPUs.

    Example:
        >>> first, _ = worker_environments(["a:1", "b:1"], environment={"CUDA_VISIBLE_DEVICES": ""})
        >>> first["TF_CONFIG"]
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    """
    if devices_per_worker is not None and devices_per_worker < 1:
        raise ValueError(
            "--devices-per-worker: expected at least 1. "
            f"Received: devices_per_worker={devices_per_worker}"
        )
    base = dict(os.environ if environment is None else environment)
    base.pop("TF_CONFIG", None)
    base.setdefault(noise.LEVEL, noise.DEFAULT_LEVEL)
    base.update(TF_ADASUM_LAUNCHER="1", PYTHONUNBUFFERED="1")
    if devices_per_worker is not None:
        base["TF_ADASUM_DEVICES_PER_WORKER"] = str(devices_per_worker)

    environments = [dict(base) for _ in addresses]
    if len(addresses) > 1:
        for index, worker in enumerate(environments):
            task = {"type": "worker", "index": index}
            worker["TF_CONFIG"] = json.dumps({"cluster": {"worker": [*addresses]}, "task": task})
    else:
        environments[0].update({detection.WORLD_SIZE: "1", detection.RANK: "0"})
    if len(addresses) > 1 or devices_per_worker is not None:
        gpus = visible_gpus(base)
        if gpus:
            shares = _gpu_shares(gpus, len(addresses), devices_per_worker)
            for worker, share in zip(environments, shares, strict=True):
                worker["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return environments


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs CUDA would show, as entries for ``CUDA_VISIBLE_DEVICES``.

    Args:
        environment: a process's environment.

    Example:
        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "0,2"})
        ['0', '2']
    """
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
