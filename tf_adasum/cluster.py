"""The cluster: which tasks train together, and which of them this process is."""

import dataclasses
import json
import os

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The training tasks of a cluster and this one among them.

    Attributes:
        addresses: "host:port" of each task, in rank order: the chief, if there is one, then the
            workers.
        names: name of each, e.g. "worker 2".
        rank: index of this task.
    """

    addresses: tuple
    names: tuple
    rank: int

    def named(self, ranks):
        """Returns the names and addresses of some tasks, for messages."""
        return ", ".join(f"{self.names[rank]} ({self.addresses[rank]})" for rank in ranks)


def resolve(cluster_resolver=None):
    """Reads and checks the cluster.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`; None for TF_CONFIG.

    Returns:
        The resolver, and a `Cluster`, or None where this process trains alone.

    Raises:
        ValueError: if `cluster_resolver` is none, or the cluster or this task's place in it is
            missing or wrong.
    """
    source = "cluster_resolver"
    if cluster_resolver is None:
        source = "TF_CONFIG"
        _check_tf_config(os.environ.get("TF_CONFIG") or "{}")
        cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if not isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver):
        raise ValueError(
            "`cluster_resolver` must be a tf.distribute.cluster_resolver.ClusterResolver. "
            f"Received: cluster_resolver={cluster_resolver!r}"
        )
    tasks = tf.train.ClusterSpec(cluster_resolver.cluster_spec()).as_dict()
    if not tasks:
        return cluster_resolver, None
    return cluster_resolver, _place_in(
        tasks, cluster_resolver.task_type, cluster_resolver.task_id, source
    )


def _check_tf_config(text):
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"TF_CONFIG is not valid JSON ({error}). Received: {text!r}") from error
    if not isinstance(config, dict) or not isinstance(config.get("cluster", {}), dict):
        raise ValueError(
            'TF_CONFIG must look like {"cluster": {"worker": ["host:port", ...]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text!r}'
        )
    if not config.get("cluster"):
        return
    task = config.get("task")
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        raise ValueError(
            'TF_CONFIG has a "cluster" but does not say which task this is; add '
            f'"task": {{"type": "worker", "index": 0}}. Received: {text!r}'
        )


def _place_in(tasks, task_type, task_id, source):
    if task_type is None or task_id is None:
        raise ValueError(
            f"{source} gives a cluster but not this task's type and index. "
            f"Received: task_type={task_type!r}, task_id={task_id!r}"
        )
    if task_type not in ("chief", "worker"):
        raise ValueError(
            f"Only 'chief' and 'worker' tasks train with AdasumMirroredStrategy. "
            f"Received: task type {task_type!r} from {source}"
        )
    jobs = [(job, list(tasks.get(job, ()))) for job in ("chief", "worker")]
    members = [(job, index) for job, addresses in jobs for index in range(len(addresses))]
    addresses = tuple(address for _, own in jobs for address in own)
    if (task_type, int(task_id)) not in members:
        raise ValueError(
            f"{source} does not contain this task: the cluster has "
            f"{', '.join(f'{job} {index}' for job, index in members)}. "
            f"Received: {task_type} {task_id}"
        )
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"{source} gives one address to two tasks. Received: {addresses}")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(
                f"{source} must give each task's address as 'host:port'. Received: {address!r}"
            )
    names = tuple(f"{job} {index}" for job, index in members)
    return Cluster(addresses, names, members.index((task_type, int(task_id))))
