"""The rendezvous, in which the workers of a cluster connect before TensorFlow starts its server.

TensorFlow's own start-up prints nothing while it waits for a worker that never comes, and does not
detect that workers were started with different settings. So worker 0 first serves a store
(`store`): at the coordinator's address if the workers know only this address (`join`), otherwise at
its own port. Each worker begins a session with it, and receives the addresses of all workers if it
does not know them. In the same session, all send their settings (`meet`). Worker 0 decides
(`start_round`), and all receive the same result. Then worker 0 closes the port of the store.
The links between the other workers are tested if they wait (`health.reachability`). Standard
library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from tf_adasum.cluster.participant import Participant
from tf_adasum.cluster.tasks import Cluster

_joined: dict[Cluster, Participant] = {}  # from the clusters as they were before


def join(cluster: Cluster, timeout: float, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster with the addresses of all workers.

    Until `forget` is called, the same cluster returns the same result. This worker's port is held
    for its servers, see `ports.hold`, and the connections stay open for `meet`.

    Args:
        cluster: a `Cluster` without addresses.
        timeout: seconds to wait for the other workers.
        environment: the environment variables with the secret and the interface. Defaults to
            ``os.environ``.

    Raises:
        ValueError: if the secret or the interface is not valid; on all workers, if they were
            started with different numbers of workers, secrets or releases of tf_adasum, or if two
            workers have the same rank.
        TimeoutError: if workers are missing, or worker 0 cannot be reached. The message names the
            workers, and the addresses of worker 0 that were tried.
        OSError: on worker 0, if another process uses the coordinator's port.
    """
    if cluster not in _joined:
        with contextlib.ExitStack() as stack:
            met = Participant(cluster, environment)
            stack.callback(met.close)
            met.join(timeout)
            stack.pop_all()
        _joined[cluster] = met
    return _joined[cluster].cluster


def meet(
    cluster: Cluster,
    settings: dict[str, Any],
    timeout: float,
    payload: dict[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Participant:
    """Wait until all workers of the cluster are connected and have compared their settings.

    Args:
        cluster: the `Cluster`, with all addresses.
        settings: dict of the settings that must match on all workers; JSON types.
        timeout: seconds.
        payload: on worker 0, a dict of other data for all workers; JSON types. Defaults to nothing.
        environment: the environment variables with the secret, see `secret.read`. Defaults to
            ``os.environ``.

    Returns:
        The `Participant`, whose connections stay open until `close` is called.

    Raises:
        OSError: if another process uses this worker's port.
        TimeoutError: if workers did not start in time, or cannot reach worker 0.
        ValueError: if workers were started with different clusters, settings or secrets; if the
            secret cannot be used.
        WorkerLostError: if a worker has ended during the rendezvous.

    The messages name the workers.
    """
    joined = (each for each in _joined.values() if each.cluster == cluster and not each.is_over)
    with contextlib.ExitStack() as stack:
        met = next(joined, None) or Participant(cluster, environment)
        stack.callback(met.close)
        met.meet(settings, payload or {}, timeout)
        stack.pop_all()
    return met


def forget(cluster: Cluster) -> None:
    """Let the next `join` of this process begin anew, and release this worker's port.

    Args:
        cluster: a result of `join`. For other clusters, nothing is done.
    """
    for known, met in list(_joined.items()):
        if met.cluster == cluster:
            del _joined[known]
            met.forget()
