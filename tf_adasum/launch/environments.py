"""Environment variables of each worker: its rank, the cluster, and its GPUs.

Uses only the standard library.
"""

import functools
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from tf_adasum.cluster import tf_config
from tf_adasum.environment_variables import COORDINATOR, RANK, WORLD_SIZE
from tf_adasum.errors import LAUNCHER, see
from tf_adasum.launch import log_filter
from tf_adasum.launch.nodes import Nodes

# Variables that give a process its cluster and rank. Workers do not inherit the launcher's values.
_PLACE = (tf_config.NAME, COORDINATOR, RANK, WORLD_SIZE)


def worker_environments(
    addresses: Sequence[str],
    devices_per_worker: int | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    nodes: Nodes | None = None,
    verbose: bool = False,
) -> list[dict[str, str]]:
    """Return the environment of every worker of this machine.

    Args:
        addresses: ``host:port`` of every worker. A single worker trains alone and gets no
            ``TF_CONFIG``, even if the launcher has one, or if a scheduler started the launcher.
        devices_per_worker: passed to the workers as ``TF_ADASUM_DEVICES_PER_WORKER``. Defaults to
            None: the variable is not set.
        environment: the variables that the workers inherit. Defaults to ``os.environ``.
        nodes: the machines. If there are several machines, each worker receives its rank, the
            number of workers and the address of the coordinator. Then only the length of
            `addresses` is used. Defaults to None: this machine.
        verbose: whether TensorFlow prints all its messages. Defaults to False: TensorFlow prints
            only errors, unless the environment sets another level.

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
    nodes = nodes or Nodes()
    inherited = os.environ if environment is None else environment
    base = {name: value for name, value in inherited.items() if name not in _PLACE}
    if verbose:
        base[log_filter.LEVEL] = "0"
    base.setdefault(log_filter.LEVEL, log_filter.DEFAULT_LEVEL)
    base.setdefault("PYTHONHASHSEED", "0")  # so that a set of str has the same order everywhere
    base |= {LAUNCHER: "1", "PYTHONUNBUFFERED": "1"}
    if devices_per_worker is not None:
        base["TF_ADASUM_DEVICES_PER_WORKER"] = str(devices_per_worker)

    environments = [dict(base) for _ in addresses]
    ranks = nodes.ranks(len(addresses))
    if nodes.coordinator is not None:
        for rank, worker in zip(ranks, environments, strict=True):
            worker[COORDINATOR] = nodes.coordinator
            worker[RANK] = str(rank)
            worker[WORLD_SIZE] = str(nodes.total(len(addresses)))
    elif len(addresses) > 1:
        for index, worker in enumerate(environments):
            task = {"type": "worker", "index": index}
            text = json.dumps({"cluster": {"worker": [*addresses]}, "task": task})
            worker[tf_config.NAME] = text
    else:
        environments[0].update({WORLD_SIZE: "1", RANK: "0"})
    if len(addresses) > 1 or devices_per_worker is not None:
        gpus = visible_gpus(base)
        if gpus:
            shares = _gpu_shares(gpus, len(addresses), devices_per_worker)
            for worker, share in zip(environments, shares, strict=True):
                worker["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return environments


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that CUDA shows to a process, as entries for ``CUDA_VISIBLE_DEVICES``.

    Args:
        environment: a process's environment.

    Raises:
        ValueError: if `nvidia-smi` does not answer.

    Example:
        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "0,2"})
        ['0', '2']
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(_count_gpus())]

    def is_valid(entry: str) -> bool:
        return entry not in ("", "NoDevFiles") and not entry.startswith("-")

    # CUDA ignores everything from the first invalid entry on.
    return list(itertools.takewhile(is_valid, map(str.strip, chosen.split(","))))


def automatic_workers(environment: Mapping[str, str], devices_per_worker: int | None) -> int:
    """Return the number of workers that ``-n auto`` starts: GPUs divided by `devices_per_worker`.

    The quotient is rounded down. The number of workers is at least 1, also without GPUs.

    Args:
        environment: a process's environment.
        devices_per_worker: the number of GPUs of each worker; None means 1.

    Example:
        >>> automatic_workers({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 2)
        2
    """
    return max(1, len(visible_gpus(environment)) // max(1, devices_per_worker or 1))


@functools.cache
def _count_gpus() -> int:
    """Return the number of GPUs that `nvidia-smi` lists, or 0 without a working driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60)
    except OSError:
        return 0
    except subprocess.TimeoutExpired:
        raise ValueError(
            "-n / --devices-per-worker: nvidia-smi does not list the GPUs within 60 s. Check the "
            "driver, or set CUDA_VISIBLE_DEVICES"
        ) from None
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def _gpu_shares(gpus: list[str], num_workers: int, per_worker: int | None) -> list[list[str]]:
    """Return the GPUs of each worker: `per_worker` GPUs, or an equal share of all GPUs."""
    size = per_worker or max(1, len(gpus) // num_workers)
    if len(gpus) < num_workers * size:
        raise ValueError(
            f"-n / --devices-per-worker: expected {num_workers * size} GPUs for {num_workers} "
            f"workers with {size} each. Received: {len(gpus)} visible GPUs ({','.join(gpus)}). "
            "Lower -n or --devices-per-worker, or set CUDA_VISIBLE_DEVICES= to use CPUs "
            f"{see('TFA-210')}"
        )
    return [gpus[index * size : (index + 1) * size] for index in range(num_workers)]
