"""Begins the failure detector, after the rendezvous with the other workers."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from tf_adasum.cluster import error_file, rendezvous, secret
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.environment_variables import failure_detector_port
from tf_adasum.health import connections, monitor


def has_begun(cluster: Cluster) -> bool:
    """Return whether this process already runs the failure detector for a cluster."""
    return cluster in monitor._monitors


def begin(
    cluster: Cluster, settings: dict[str, Any], timeout: float | None, start_timeout: float
) -> monitor.HealthMonitor:
    """Run the rendezvous with the other workers, and start the failure detector.

    Args:
        cluster: the `Cluster`.
        settings: dict of the settings that must match on all workers, see `cluster.rendezvous`.
        timeout: the argument `timeout` of the strategy.
        start_timeout: seconds to wait for the other workers now.

    Returns:
        The `HealthMonitor`, which all strategies with the same cluster share. The rendezvous may
        raise errors, see `cluster.rendezvous`.
    """
    if cluster in monitor._monitors:
        return monitor._monitors[cluster]
    error_file.begin()
    host, _ = cluster.host_and_port(0)
    key, port = secret.read(), failure_detector_port()
    server = connections.Server(host, len(cluster.names), key, port) if cluster.rank == 0 else None
    seed = int.from_bytes(os.urandom(7), "big")
    payload = {**server.endpoint, "seed": seed} if server else {}
    with contextlib.ExitStack() as stack:
        if server:
            stack.callback(server.close)
        payloads = rendezvous.run(cluster, settings, start_timeout, payload)
        stack.pop_all()
    made = monitor.HealthMonitor(cluster, server, timeout)
    made.seed = seed if server else payloads[0].get("seed")
    if server:
        made.start()
    else:
        connections.connect(cluster, payloads[0], key, made.use)
    return made
