"""The cluster: which tasks train together, and which of them this process is."""

import dataclasses
import itertools
import json
import os
import re

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

    def workers_per_host(self):
        """Returns how many tasks share a host, that is the part of the address before the port.

        Raises:
            ValueError: unless it is the same number on every host, in neighbouring ranks.
        """
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        runs = [len(list(run)) for _, run in itertools.groupby(hosts)]
        if len(runs) > len(set(hosts)) or len(set(runs)) > 1:
            raise ValueError(
                "local_reduction='mean' needs the same number of workers on every host, and "
                "workers of one host next to each other in the cluster. Received: "
                + ", ".join(self.addresses)
            )
        return runs[0]


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
    resolvers = tf.distribute.cluster_resolver
    source = "cluster_resolver"
    if cluster_resolver is None:
        source = "TF_CONFIG"
        text = os.environ.get("TF_CONFIG", "{}")
        if text:
            _check_tf_config(text)
            cluster_resolver = resolvers.TFConfigClusterResolver()
        else:  # set but empty: no cluster, which TensorFlow's resolver cannot read
            cluster_resolver = resolvers.SimpleClusterResolver(tf.train.ClusterSpec({}))
    if not isinstance(cluster_resolver, resolvers.ClusterResolver):
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
    """Checks the shape of TF_CONFIG, and leaves its contents to `_place_in`."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:  # deeply nested JSON exhausts the parser
        raise ValueError(
            f"TF_CONFIG is not valid JSON ({error}). Received: {text[:1000]!r}"
        ) from error
    jobs = config.get("cluster", {}) if isinstance(config, dict) else None
    if not isinstance(jobs, dict) or not all(
        isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)
        for addresses in jobs.values()
    ):
        raise ValueError(
            'TF_CONFIG must look like {"cluster": {"worker": ["host:port", ...]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text!r}'
        )
    if not jobs:
        return
    task = config.get("task")
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        raise ValueError(
            'TF_CONFIG has a "cluster" but does not say which task this is; add '
            f'"task": {{"type": "worker", "index": 0}}. Received: {text!r}'
        )
    if not re.fullmatch(r"-?\d+", str(task["index"])):
        raise ValueError(
            'The "index" of the "task" in TF_CONFIG must be a whole number. '
            f"Received: {task['index']!r}"
        )


def _place_in(tasks, task_type, task_id, source):
    if task_type is None or task_id is None:
        raise ValueError(
            f"{source} gives a cluster but not this task's type and index. "
            f"Received: task_type={task_type!r}, task_id={task_id!r}"
        )
    if task_type not in ("chief", "worker"):
        raise ValueError(
            "Only 'chief' and 'worker' tasks train with AdasumMirroredStrategy. "
            f"Received: task type {task_type!r} from {source}"
        )
    jobs = {job: tasks.get(job) or [] for job in ("chief", "worker")}
    sparse = [job for job, addresses in jobs.items() if not isinstance(addresses, list)]
    if sparse:
        raise ValueError(
            f"{source} must list every task of the job {sparse[0]!r}: all of them train. "
            f"Received: {jobs[sparse[0]]}"
        )
    members = [(job, index) for job in jobs for index in range(len(jobs[job]))]
    addresses = (*jobs["chief"], *jobs["worker"])
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
