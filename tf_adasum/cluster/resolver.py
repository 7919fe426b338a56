"""Finds the cluster, from a resolver, from TF_CONFIG, or from the launcher of this process."""

from __future__ import annotations

import os
import typing

import tensorflow as tf

from tf_adasum import environment_variables
from tf_adasum.cluster import detection, rendezvous, tasks, tf_config


class ResolvedCluster(typing.NamedTuple):
    """The result of `resolve`.

    Attributes:
        resolver: a `tf.distribute.cluster_resolver.ClusterResolver` for TensorFlow.
        cluster: the `Cluster`; None if this process trains alone.
        source: the source of the cluster, for messages.
    """

    resolver: tf.distribute.cluster_resolver.ClusterResolver
    cluster: tasks.Cluster | None
    source: str


def resolve(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    timeout: float | None = None,
) -> ResolvedCluster:
    """Read and check the cluster; join it if only the address of worker 0 is known.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. Defaults to the
            cluster in ``TF_CONFIG``, or the cluster that `detection.find` finds.
        timeout: seconds to wait for the other workers when joining. Defaults to None, for the
            seconds of `environment_variables.start_timeout`.

    Raises:
        ValueError: if `cluster_resolver` is not a ClusterResolver; if the cluster, or this task's
            rank in the cluster, is missing or wrong.
        OSError, TimeoutError: as in `rendezvous.join`.
    """
    resolvers = tf.distribute.cluster_resolver
    if cluster_resolver is None:
        return _resolve_environment(timeout)
    if not isinstance(cluster_resolver, resolvers.ClusterResolver):
        raise ValueError(
            "`cluster_resolver` must be a tf.distribute.cluster_resolver.ClusterResolver. "
            f"Received: cluster_resolver={cluster_resolver!r}"
        )
    source = type(cluster_resolver).__name__
    jobs = tf.train.ClusterSpec(cluster_resolver.cluster_spec()).as_dict()
    if not jobs:
        return ResolvedCluster(cluster_resolver, None, source)
    task = cluster_resolver.task_type, cluster_resolver.task_id
    return ResolvedCluster(
        cluster_resolver, tasks.cluster_from_jobs(jobs, *task, "cluster_resolver"), source
    )


def _resolve_environment(timeout: float | None) -> typing.Any:
    resolvers = tf.distribute.cluster_resolver
    text = os.environ.get(tf_config.NAME)
    if text:
        return ResolvedCluster(
            resolvers.TFConfigClusterResolver(), tf_config.parse(text), tf_config.NAME
        )
    config = detection.find(os.environ)
    if config is None:
        # TensorFlow's resolver cannot read a TF_CONFIG that is set but empty.
        empty = resolvers.SimpleClusterResolver(tf.train.ClusterSpec({}))
        return ResolvedCluster(
            resolvers.TFConfigClusterResolver() if text is None else empty, None, ""
        )
    seconds = environment_variables.start_timeout(timeout)
    cluster = rendezvous.join(config, seconds, os.environ)
    resolver = resolvers.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )
    return ResolvedCluster(resolver, cluster, config.source)
