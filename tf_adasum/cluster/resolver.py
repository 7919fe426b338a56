"""The cluster that TF_CONFIG or a `tf.distribute.cluster_resolver.ClusterResolver` gives."""

from __future__ import annotations

import os

import tensorflow as tf

from tf_adasum.cluster import tasks, tf_config


def resolve(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
) -> tuple[tf.distribute.cluster_resolver.ClusterResolver, tasks.Cluster | None]:
    """Read and check the cluster.

    Args:
        cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`. Defaults to the one
            that reads ``TF_CONFIG``.

    Returns:
        The resolver, and a `Cluster`, or None where this process trains alone.

    Raises:
        ValueError: if `cluster_resolver` is no ClusterResolver, or the cluster or this task's place
            in it is missing or wrong.
    """
    resolvers = tf.distribute.cluster_resolver
    if cluster_resolver is None:
        text = os.environ.get(tf_config.NAME, "{}")
        if not text:  # set but empty: no cluster, which TensorFlow's resolver cannot read
            return resolvers.SimpleClusterResolver(tf.train.ClusterSpec({})), None
        return resolvers.TFConfigClusterResolver(), tf_config.parse(text)
    if not isinstance(cluster_resolver, resolvers.ClusterResolver):
        raise ValueError(
            "`cluster_resolver` must be a tf.distribute.cluster_resolver.ClusterResolver. "
            f"Received: cluster_resolver={cluster_resolver!r}"
        )
    jobs = tf.train.ClusterSpec(cluster_resolver.cluster_spec()).as_dict()
    if not jobs:
        return cluster_resolver, None
    return cluster_resolver, tasks.place(
        jobs, cluster_resolver.task_type, cluster_resolver.task_id, "cluster_resolver"
    )
