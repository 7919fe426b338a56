"""The rendezvous, in which the tasks of a cluster connect before TensorFlow starts its server.

TensorFlow's own start-up prints nothing while it waits for a task that never comes, and does not
detect that tasks were started with different settings. So every task first listens on its own port,
and connects to the other tasks, or only to task 0 (`peer_handshakes`). The handshake between two
tasks is in `handshake`. When all tasks are connected, they release the ports for TensorFlow.
Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from tf_adasum.cluster import addresses, secret
from tf_adasum.cluster.environment_variables import START_TIMEOUT
from tf_adasum.cluster.peer_handshakes import (
    ANOTHER_PROGRAM,
    NO_ANSWER,
    SECONDS_BETWEEN_ROUNDS,
    PeerHandshakes,
)
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import WorkerLostError, see

SECONDS_BETWEEN_MESSAGES = 10.0
_SECONDS_FOR_A_SERVER = 10.0
_SECONDS_FOR_THE_LAST_CALLS = 2.0  # after the timeout
_MOST_SENTENCES = 8
# A gRPC server begins each HTTP/2 connection with a SETTINGS frame. Byte 3 of a frame is its type.
_FRAME_TYPE_INDEX, _SETTINGS_FRAME = 3, 0x04


def wait_for_server(address: str, timeout: float = _SECONDS_FOR_A_SERVER) -> None:
    """Wait until TensorFlow's server listens at an address; return after the timeout in any case.

    The other tasks register with worker 0's server, which uses the port of the rendezvous. If a
    task registers while the server starts, it may wait for an answer that never comes (observed
    with TensorFlow 2.15, once in three starts of four workers on a busy machine).

    Args:
        address: "host:port" of worker 0.
        timeout: seconds. Defaults to 10.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(addresses.split(address), timeout=1) as connection:
                begun = connection.recv(_FRAME_TYPE_INDEX + 1, socket.MSG_WAITALL)
        except OSError:
            begun = b""
        if len(begun) > _FRAME_TYPE_INDEX and begun[_FRAME_TYPE_INDEX] == _SETTINGS_FRAME:
            return
        time.sleep(SECONDS_BETWEEN_ROUNDS)


def run(
    cluster: Cluster,
    settings: dict[str, Any],
    timeout: float,
    payload: dict[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[int, dict[str, Any]]:
    """Wait until all tasks of the cluster are connected, as described in `peer_handshakes`.

    Args:
        cluster: the `Cluster`.
        settings: dict of the settings that must match on all tasks; JSON types.
        timeout: seconds.
        payload: dict of other data for the other tasks; JSON types. Defaults to nothing.
        environment: the environment variables with the secret, see `secret.read`. Defaults to
            ``os.environ``.

    Returns:
        Dict from ranks to payloads: of all other tasks, or only of task 0 if this task has joined
        through task 0.

    Raises:
        OSError: if another process uses this task's port.
        TimeoutError: if tasks did not start in time, or cannot reach each other.
        ValueError: if tasks were started with different clusters, settings or secrets; if the
            secret cannot be used.
        WorkerLostError: if a task has ended during the rendezvous.

    The messages name the tasks.
    """
    own_secret = secret.read(environment)
    settings = {"cluster": list(cluster.addresses), **settings}
    deadline = time.monotonic() + timeout
    next_message = time.monotonic() + SECONDS_BETWEEN_MESSAGES
    with PeerHandshakes(cluster, settings, payload or {}, own_secret) as peers:
        lost = ""
        while (
            not (is_over := peers.is_over())
            and not (lost := peers.lost())
            and time.monotonic() < deadline
        ):
            peers.call_round(deadline)
            if time.monotonic() > next_message:
                next_message += SECONDS_BETWEEN_MESSAGES
                others = cluster.named(peers.missing()) or "workers that cannot reach all others"
                reasons = " ".join(_failures(cluster, peers))
                line = f"tf_adasum: waiting for {others}. {reasons}".rstrip()
                print(line, file=sys.stderr, flush=True)
            peers.wait(SECONDS_BETWEEN_ROUNDS)
        if lost:
            time.sleep(_SECONDS_FOR_THE_LAST_CALLS)  # the other tasks call, and receive this error
        elif not is_over:
            peers.wait_for_calls(_SECONDS_FOR_THE_LAST_CALLS)
        # Errors are raised only now, when all other tasks have received this task's settings.
        # Otherwise, they would report this task as missing.
        _check_secrets(cluster, peers, bool(own_secret.key))
        if difference := peers.difference():
            raise ValueError(difference)
        if lost:
            raise WorkerLostError(f"{lost}. Restart all workers. {see('TFA-501')}")
        if not is_over:
            raise TimeoutError(_who_is_missing(cluster, peers, timeout))
        return {rank: other.payload for rank, other in peers.hellos.items()}


def _check_secrets(cluster, peers, has_secret):
    """Raise a ValueError if a task has not proved that it knows the secret."""
    ranks = [rank for rank in sorted(peers.unauthenticated) if rank not in peers.hellos]
    if ranks:
        others = {cluster.named([rank]): peers.unauthenticated[rank] for rank in ranks}
        raise ValueError(different_secrets(cluster.named([cluster.rank]), has_secret, others))


def different_secrets(name: str, has_secret: bool, others: Mapping[str, bool]) -> str:
    """Return the error message for tasks that were started with different secrets.

    Args:
        name: the name of this task.
        has_secret: whether this task has a secret.
        others: dict from the names of the other tasks to whether they have a secret.
    """
    words = {(False, True): "a secret", (True, True): "a different secret"}
    received = [f"{'a secret' if has_secret else 'no secret'} on {name}"]
    received += [
        f"{words.get((has_secret, its), 'no secret')} on {other}" for other, its in others.items()
    ]
    return (
        f"All workers must be started with the same secret, in the variable {secret.NAME} or "
        f"in a file that {secret.FILE_NAME} names. Received: {', '.join(received)} "
        f"{see('TFA-207')}"
    )


def _who_is_missing(cluster, peers, timeout):
    absent = [rank for rank in peers.missing() if rank not in peers.hellos]
    what = (
        f"{cluster.named(absent)} did not start, or cannot be reached"
        if absent
        else "not all workers have reached each other"
    )
    sentences = [
        f"{cluster.named([cluster.rank])} waited {timeout:g} s, but {what}.",
        *_failures(cluster, peers),
        "Start every task of the cluster, check that each address can be reached from the other "
        f"tasks' machines, or wait longer with {START_TIMEOUT}=SECONDS or "
        "tf.distribute.experimental.CommunicationOptions(timeout_seconds=...). "
        f"{see('TFA-201')}",
    ]
    return " ".join(sentences)


def _failures(cluster, peers):
    """Return sentences about which tasks cannot reach which tasks, and why."""
    missing = peers.missing()
    unreached: dict[str, list[int]] = {}
    for rank in missing:
        if rank in peers.failures and not peers.has_reached(rank):
            unreached.setdefault(peers.failures[rank], []).append(rank)
    sentences = []
    for failure, ranks in unreached.items():
        if failure == ANOTHER_PROGRAM:
            sentence = f"Another program answers at the address of {cluster.named(ranks)}."
        elif failure == NO_ANSWER:
            sentence = (
                f"The program at the address of {cluster.named(ranks)} does not answer. It is "
                "another program, or a suspended worker."
            )
        else:
            sentence = (
                f"{cluster.names[cluster.rank]} cannot reach {cluster.named(ranks)}: {failure}."
            )
        sentences.append(sentence)
    everybody = range(len(cluster.addresses))
    absent = {rank for rank in missing if rank not in peers.hellos}
    for who, failures in sorted(peers.failures_of_others().items()):
        of_other: dict[str, list[int]] = {}
        for whom, failure in sorted(failures.items()):
            if whom in everybody and whom not in absent:
                of_other.setdefault(failure, []).append(whom)
        for failure, ranks in of_other.items():
            sentences.append(
                f"{cluster.names[who]} cannot reach {cluster.named(ranks)}: {failure}."
            )
        is_silent = who in missing and peers.has_reached(who) and cluster.rank not in failures
        if is_silent:
            sentences.append(
                f"{cluster.names[who]} has not reached {cluster.named([cluster.rank])}."
            )
    more = len(sentences) - _MOST_SENTENCES
    return sentences if more <= 0 else [*sentences[:_MOST_SENTENCES], f"{more} more such failures."]
