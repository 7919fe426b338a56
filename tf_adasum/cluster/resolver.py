"""Finds the cluster, from a resolver, from TF_CONFIG, or from the launcher of this process."""

import os
import typing

import tensorflow as tf

from tf_adasum import environment_variables
from tf_adasum.arguments import check
from tf_adasum.cluster import detection, rendezvous, tasks, tf_config

Resolver: typing.TypeAlias = tf.distribute.cluster_resolver.ClusterResolver


def resolve(
    cluster_resolver: Resolver | None = None, timeout: float | None = None
) -> tuple[Resolver, tasks.Cluster | None]:
    """Read and check the cluster; join it if only the address of worker 0 is known.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. Defaults to the
            cluster that `detection.find` finds.
        timeout: seconds to wait for the other workers when joining. Defaults to None, for the
            seconds of `environment_variables.start_timeout`.

    Returns:
        The resolver for TensorFlow, and the `Cluster`; None if this process trains alone.

    Raises:
        ValueError: if `cluster_resolver` is not a ClusterResolver; if the cluster, or this task's
            rank in the cluster, is missing or wrong.
        OSError, TimeoutError: as in `rendezvous.join`.
    """
    if cluster_resolver is None:
        return _resolve_environment(timeout)
    is_resolver = isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver)
    expected = "must be a tf.distribute.cluster_resolver.ClusterResolver"
    check("cluster_resolver", cluster_resolver, is_resolver, expected)
    jobs = tf.train.ClusterSpec(cluster_resolver.cluster_spec()).as_dict()
    if not jobs:
        return cluster_resolver, None
    task = cluster_resolver.task_type, cluster_resolver.task_id
    return cluster_resolver, tasks.cluster_from_jobs(jobs, *task, "cluster_resolver")


def _resolve_environment(timeout: float | None) -> tuple[Resolver, tasks.Cluster | None]:
    resolvers = tf.distribute.cluster_resolver
    found = detection.find(os.environ)
    if found is None and os.environ.get(tf_config.NAME) == "":  # TensorFlow cannot read it
        return resolvers.SimpleClusterResolver(tf.train.ClusterSpec({})), None
    if found is None or found.addresses:
        return resolvers.TFConfigClusterResolver(), found
    cluster = rendezvous.join(found, environment_variables.start_timeout(timeout), os.environ)
    jobs = tf.train.ClusterSpec({"worker": list(cluster.addresses)})
    own = {"task_type": "worker", "task_id": cluster.rank, "rpc_layer": "grpc"}
    return resolvers.SimpleClusterResolver(jobs, **own), cluster
