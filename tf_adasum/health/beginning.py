"""Begins the failure detector, after the rendezvous with the other workers."""

from __future__ import annotations

import os
from typing import Any

from tf_adasum.cluster import error_file, rendezvous
from tf_adasum.cluster.tasks import Cluster
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
    payload = {"seed": int.from_bytes(os.urandom(7), "big")}
    met = rendezvous.meet(cluster, settings, start_timeout, payload)
    channel = connections.OfOtherWorker(met) if cluster.rank else connections.OfWorker0(met)
    made = monitor.HealthMonitor(cluster, channel, timeout)
    made.seed = met.payload.get("seed")
    made.start()
    return made
