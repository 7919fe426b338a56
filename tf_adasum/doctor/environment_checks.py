"""Find out from the environment whether this process is one of several workers, and its rank."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from tf_adasum.cluster import detection, tf_config
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.doctor.findings import FAIL, NOTE, OK, Finding


def find(environment: Mapping[str, str]) -> tuple[list[Finding], Cluster | None]:
    """Return findings about the cluster in the environment, and how to join it.

    The second value is None if there is no cluster, or if its description is wrong. The strategy
    detects clusters in the same order.
    """
    findings = check_tf_config(environment)
    if any(finding.level == FAIL for finding in findings):
        return findings, None
    cluster = tf_config.parse(environment.get(tf_config.NAME, ""))
    if cluster is not None:
        return findings, cluster
    try:
        config = detection.find(environment)
    except ValueError as error:
        return [*findings, Finding(FAIL, "cluster", str(error))], None
    if config is None:
        return findings, None
    text = (
        f"worker {config.rank} of {config.num_workers}, with the rendezvous at "
        f"{config.coordinator}, from {config.source}"
    )
    return [Finding(OK, "cluster", text, facts={"found_by": config.source})], config


def check_tf_config(environment: Mapping[str, str]) -> list[Finding]:
    """Check the cluster described by ``TF_CONFIG``, if there is one."""
    text = environment.get(tf_config.NAME)
    if not text:
        return [Finding(NOTE, tf_config.NAME, "not set: one process, no cluster")]
    try:
        cluster = tf_config.parse(text)
    except ValueError as error:
        fix = f"{tf_config.EXAMPLE}, or start with tf-adasum-launch"
        return [Finding(FAIL, tf_config.NAME, str(error), fix)]
    if cluster is None:
        return [Finding(NOTE, tf_config.NAME, "has no cluster: one process")]
    text = f"{cluster.names[cluster.rank]} of {', '.join(cluster.addresses)}"
    _, port = cluster.host_and_port(cluster.rank)
    facts = {"found_by": tf_config.NAME}
    return [Finding(OK, tf_config.NAME, text, facts=facts), _port_finding(port)]


def _port_finding(port: int) -> Finding:
    """Check that this task's port is free on every interface: TensorFlow's server binds to all."""
    with socket.socket() as probe:
        # With this option, a connection that was closed a minute ago does not block the port, but
        # a server does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            fix = f"end the process that holds it (ss -ltnp 'sport = :{port}') or change the port"
            return Finding(FAIL, tf_config.NAME, f"port {port}: {error.strerror}", fix)
    return Finding(OK, tf_config.NAME, f"port {port} is free")
