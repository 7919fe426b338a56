"""The rendezvous, in which the tasks of a cluster connect before TensorFlow starts its server.

TensorFlow's own start-up prints nothing while it waits for a task that never comes, and does not
detect that tasks were started with different settings. So every task first serves a store (`store`)
at its own port. Each task begins a session with task 0, and sends its settings. Tasks also test
whether they reach each other's ports (`port_probes`), because a task that cannot be reached would
fail later, in TensorFlow. Task 0 decides (`rendezvous_round`), and all tasks receive the same
result. Then they release the ports for TensorFlow. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from tf_adasum.cluster import addresses, ports, secret, tf_config
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.participant import Participant
from tf_adasum.cluster.port_probes import PortProbes, reason
from tf_adasum.cluster.rendezvous_round import (
    OwnTask,
    RendezvousRound,
    failure_sentences,
    lost,
)
from tf_adasum.cluster.session import Session
from tf_adasum.cluster.store import Leader, StoreServer
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    PATIENCE_SECONDS,
    POLL_SECONDS,
)
from tf_adasum.environment_variables import START_TIMEOUT
from tf_adasum.errors import WorkerLostError, see

_SECONDS_FOR_A_SERVER = 15.0
_BACKLOG = 1024  # callers that wait in the kernel
_LONGEST_CLUSTER = 48_000  # characters
# A gRPC server begins each HTTP/2 connection with a SETTINGS frame. Byte 3 of a frame is its type.
_FRAME_TYPE_INDEX, _SETTINGS_FRAME = 3, 0x04


def wait_for_server(address: str, timeout: float = _SECONDS_FOR_A_SERVER) -> None:
    """Wait until TensorFlow's server listens at an address; return after the timeout in any case.

    The other tasks register with worker 0's server, which uses the port of the rendezvous. If a
    task registers while the server starts, it may wait for an answer that never comes (observed
    with TensorFlow 2.15, once in three starts of four workers on a busy machine).

    Args:
        address: "host:port" of worker 0.
        timeout: seconds. Defaults to 15.
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
        time.sleep(POLL_SECONDS)


def meet(
    cluster: Cluster,
    settings: dict[str, Any],
    timeout: float,
    payload: dict[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Rendezvous:
    """Wait until all tasks of the cluster are connected and have compared their settings.

    Args:
        cluster: the `Cluster`.
        settings: dict of the settings that must match on all tasks; JSON types.
        timeout: seconds.
        payload: on task 0, a dict of other data for all tasks; JSON types. Defaults to nothing.
        environment: the environment variables with the secret, see `secret.read`. Defaults to
            ``os.environ``.

    Returns:
        The `Rendezvous`, whose connections stay open until `close` is called.

    Raises:
        OSError: if another process uses this task's port.
        TimeoutError: if tasks did not start in time, or cannot reach each other.
        ValueError: if tasks were started with different clusters, settings or secrets; if the
            secret cannot be used.
        WorkerLostError: if a task has ended during the rendezvous.

    The messages name the tasks.
    """
    own_secret = secret.read(environment)
    settings = {"cluster": _setting(cluster), **settings}
    with contextlib.ExitStack() as stack:
        met = Rendezvous(cluster, settings, payload or {}, own_secret, timeout)
        met.begin()
        stack.callback(met.close)
        met.wait()
        stack.pop_all()
    return met


def _setting(cluster: Cluster) -> list[str] | str:
    """Return the addresses as a setting that is compared; their hash if they are very long."""
    found = list(cluster.addresses)
    text = json.dumps(found)
    if len(text) <= _LONGEST_CLUSTER:
        return found
    return f"{len(found)} addresses, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


class Rendezvous(Participant):
    """One task's part of the rendezvous, and afterwards its connections to the others.

    Args:
        cluster: the `Cluster`.
        settings: dict of the settings that must match on all tasks.
        payload: dict of other data of task 0.
        own_secret: the `Secret`.
        timeout: seconds.

    Attributes:
        payload: on all tasks, the other data of task 0; set by `wait`.
        round: on task 0, the `RendezvousRound`, which reads and publishes the keys of the store.
        server: the `StoreServer` of this task; after `wait`, only on task 0.
        session: on the others, the `Session` with task 0.
    """

    server: StoreServer
    _later: socket.socket  # on task 0, listens after the rendezvous

    def __init__(
        self,
        cluster: Cluster,
        settings: dict[str, Any],
        payload: dict[str, Any],
        own_secret: secret.Secret,
        timeout: float,
    ):
        rank = cluster.rank
        names = cluster.named([0]), cluster.named([rank])
        super().__init__(cluster.addresses[0], rank, names, own_secret, timeout)
        self.cluster, self._settings, self.payload = cluster, settings, {**payload}
        self._probes = PortProbes(cluster, self._run, own_secret, self._deadline)
        self._lock, self._next_update = threading.Lock(), 0.0
        self._own_task = OwnTask(rank, self._run)
        has_secret = bool(own_secret.key)
        self.round = RendezvousRound(
            cluster, self._run, settings, self.payload, self._probes, has_secret
        )
        self._own_value = self._value()  # another thread reads it, for a new session
        self.session = self._session()

    def begin(self) -> None:
        """Begin to serve this task's store at its port, and to connect to other tasks.

        Raises:
            OSError: if this task cannot listen on its port.
        """
        listener, count = ports.listening_socket(self.cluster), len(self.cluster.addresses)
        leader: Leader = self.round
        if self._rank == 0:
            host, _ = self.cluster.host_and_port(0)
            self._later = addresses.bound(host, 0, reuse=False)
            self._later.listen(_BACKLOG)
            self.payload["port"] = self._later.getsockname()[1]
        else:
            leader = self._own_task
            self.session.__enter__()
        self.server = StoreServer(listener, self._secret, self._lock, leader, clients=count)

    def wait(self) -> None:
        """Wait for the result, and release this task's port."""
        if self._rank == 0:
            self._lead(self.round, self.server, self._lock, PATIENCE_SECONDS)
            self.server.hand_over(self._later)
        else:
            self.payload = self._follow(self.session)["payload"]
            host, _ = self.cluster.host_and_port(0)
            self.session.stay(addresses.joined(host, self.payload["port"]))
            self.server.close(0.0)
        self._probes.__exit__()

    def publish(self, key: str, value: Any) -> None:
        """On task 0, after the rendezvous, send a key to all."""
        with self._lock:
            self.round.publish(key, value)
        self.server.wake()

    def close(self) -> None:
        """End the connections; the other ends have a second to read what was sent."""
        self.server.close(0.0)
        self._probes.__exit__()
        if self._rank:
            self.session.close()
        else:
            self._later.close()

    def _description(self, channel: Channel) -> dict[str, Any]:
        del channel
        return self._own_value

    def _result(self, session: Session) -> dict[str, Any] | None:
        payload = session.result.get("payload")
        port = payload.get("port") if isinstance(payload, dict) else None
        return session.result if type(port) is int and 0 < port < 1 << 16 else None

    def _check(self, session: Session) -> None:
        self._probes.update(range(len(self.cluster.addresses)))
        failure = self._failure(session)
        if failure != self._own_task.failure:
            self._own_task.failure = failure
            self.server.wake()
        now, since = time.monotonic(), session.refused_since
        if session.was_connected and since is not None and now > since + LEASE_SECONDS:
            raise WorkerLostError(lost(self.cluster, 0))
        value = self._own_value = self._value()
        if session.sent != value and (now > self._next_update or value["has_reached_all"]):
            session.set(value)
            self._next_update = now + HEARTBEAT_SECONDS

    def _value(self) -> dict[str, Any]:
        """Return the value of this task's key, see `rendezvous_round.Member`."""
        return {
            "settings": self._settings,
            "failures": {str(to): why for to, why in self._probes.failures().items()},
            "has_reached_all": self._probes.have_reached_all,
        }

    def _failure(self, session: Session) -> str:
        """Return why this task cannot reach task 0; "" if it can, or has not tried."""
        if session.is_connected:
            return self._probes.mismatch(0, session.value("task"))
        return reason(session.tried)

    def _absent(self, session: Session | None) -> tuple[str, list[str]]:
        if session is None:
            return self.round.absent(), self.round.failures()
        failure = self._failure(session)
        if session.is_connected and not failure:
            return session.text("missing"), [session.text("failures")]
        absent = "" if self._own_task.is_reached_by_task_0 else self._first
        return absent, failure_sentences(self.cluster, self._rank, {0: failure})

    def _late(self, absent: str, failures: list[str]) -> str:
        what = (
            f"{absent} did not start, or cannot be reached"
            if absent
            else "not all workers have reached each other"
        )
        source = f" in {tf_config.NAME}" if os.environ.get(tf_config.NAME) else ""
        sentences = [
            f"{self._name} waited {self._timeout:g} s, but {what}.",
            *failures,
            f"Start every task of the cluster{source}, check that each address can be reached from "
            f"the other tasks' machines, or wait longer with {START_TIMEOUT}=SECONDS or "
            f"AdasumMirroredStrategy(start_timeout=SECONDS). {see('TFA-201')}",
        ]
        return " ".join(filter(None, sentences))
