"""Reads the environment variable TF_CONFIG. Standard library only, because the doctor uses it."""

import json
import re

from tf_adasum.cluster.tasks import Cluster, cluster_from_jobs

NAME = "TF_CONFIG"
EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


def parse(text: str) -> Cluster | None:
    """Return the cluster that a value of TF_CONFIG describes.

    Args:
        text: the value.

    Returns:
        The cluster; None if the value has no cluster, so that this process trains alone.

    Raises:
        ValueError: if the value is not JSON of the right form; if the cluster, or this task's rank
            in the cluster, is wrong.

    Example:
        >>> parse(EXAMPLE)
        Cluster(addresses=('host0:2222', 'host1:2222'), names=('worker 0', 'worker 1'), rank=0)
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:  # deeply nested JSON exhausts the parser
        raise ValueError(
            f"{NAME} is not valid JSON ({error}). Received: {text[:1000]!r}"
        ) from error
    jobs = config.get("cluster", {}) if isinstance(config, dict) else None
    if not isinstance(jobs, dict) or not all(
        isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)
        for addresses in jobs.values()
    ):
        raise ValueError(f"{NAME} must look like {EXAMPLE}. Received: {text!r}")
    if not jobs:
        return None
    task = config.get("task")
    is_task = isinstance(task, dict) and "type" in task
    if not is_task or not re.fullmatch(r"-?\d+", str(task.get("index"))):
        raise ValueError(
            f'{NAME} has a "cluster", but no "task" with a "type" and a whole number as "index". '
            f'Add "task": {{"type": "worker", "index": 0}}. Received: {text!r}'
        )
    return cluster_from_jobs(jobs, str(task["type"]), int(task["index"]), NAME)
