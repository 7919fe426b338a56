"""The cluster: who takes part, and meeting the others before TensorFlow waits for them.

TensorFlow's own start-up waits for a worker that never comes without a word. So each worker first
checks that its port is free, then knocks at the others' ports until all have answered, and says
which did not. Only then TensorFlow's server starts, on the same port.
"""

import contextlib
import dataclasses
import errno
import json
import os
import select
import socket
import time

import tensorflow as tf

# Seconds to wait for the others where CommunicationOptions(timeout_seconds=...) says nothing.
DEFAULT_TIMEOUT = 60.0

_KNOCK_EVERY = 0.1
_SAY_WHO_IS_MISSING_EVERY = 10.0


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


def meet(cluster, timeout):
    """Waits until every task of the cluster has been seen.

    Args:
        cluster: the `Cluster`.
        timeout: seconds.

    Raises:
        OSError: if another process uses this task's port.
        TimeoutError: naming the tasks that did not start in time.
    """
    own = cluster.addresses[cluster.rank]
    deadline = time.monotonic() + timeout
    missing = [rank for rank in range(len(cluster.addresses)) if rank != cluster.rank]
    said = time.monotonic()
    with _listening(own, cluster.names[cluster.rank]) as listener:
        while missing:
            missing = [rank for rank in missing if not _answers(cluster.addresses[rank])]
            _accept_all(listener, _KNOCK_EVERY if missing else 0)
            now = time.monotonic()
            if missing and now > deadline:
                raise TimeoutError(
                    f"{cluster.names[cluster.rank]} ({own}) waited {timeout:g} s, but "
                    f"{_listed(cluster, missing)} did not start. Start every task of the cluster, "
                    "check that the addresses can be reached from here, or wait longer with "
                    "tf.distribute.experimental.CommunicationOptions(timeout_seconds=...)."
                )
            if missing and now - said > _SAY_WHO_IS_MISSING_EVERY:
                said = now
                print(f"tf_adasum: waiting for {_listed(cluster, missing)}", flush=True)


def _listed(cluster, ranks):
    return ", ".join(f"{cluster.names[rank]} ({cluster.addresses[rank]})" for rank in ranks)


@contextlib.contextmanager
def _listening(address, name):
    """Listens on the port of `address` on all interfaces, as TensorFlow's server will."""
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen(128)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                errno.EADDRINUSE,
                f"the port of {name}, {address}, is in use by another process. End that process "
                "or give the task another port",
            ) from error
        yield listener


def _answers(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _accept_all(listener, wait):
    """Takes the knocks of the others off the queue, for at least `wait` seconds."""
    deadline = time.monotonic() + wait
    while select.select([listener], [], [], max(0, deadline - time.monotonic()))[0]:
        listener.accept()[0].close()
