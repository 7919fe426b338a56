"""Joins workers that know only worker 0's address, their own rank and the number of workers.

Worker 0 serves a store (`store`) at this address, and decides when all workers have joined
(`coordinator`). Each worker takes a free port, begins a session of the store, sets a key with its
address, and receives the addresses of all workers. After joining, the workers use their own ports
for the `rendezvous`, as in any other cluster. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from tf_adasum._version import __version__
from tf_adasum.cluster import addresses, own_address, ports, secret
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.coordinator import LONGEST_JOB, WORKERS, Coordinator
from tf_adasum.cluster.participant import Participant
from tf_adasum.cluster.session import Session
from tf_adasum.cluster.store import StoreServer
from tf_adasum.cluster.store_client import wrong_program
from tf_adasum.cluster.tasks import MOST_WORKERS, Cluster, RendezvousConfig
from tf_adasum.cluster.timeouts import PATIENCE_SECONDS, POLL_SECONDS
from tf_adasum.environment_variables import START_TIMEOUT
from tf_adasum.errors import see

# Seconds for which worker 0 retries if its port is in use, because an earlier start may be about to
# end. After this time, it asks the program at the port for an error for the same number of seconds.
_SECONDS_FOR_THE_PORT = 3.0
# The most seconds for which worker 0 waits until all workers have received the addresses.
_SECONDS_TO_SEND_RESULT = 2.0


@dataclasses.dataclass
class _Joined:
    cluster: Cluster
    open: contextlib.ExitStack  # holds this worker's port and, on worker 0, the store's server


_joined: dict[RendezvousConfig, _Joined] = {}


def join(
    config: RendezvousConfig, timeout: float, environment: Mapping[str, str] = os.environ
) -> Cluster:
    """Return the cluster of all workers.

    Until `forget` is called, the same config returns the same cluster. This worker's port is
    held for its servers, see `ports.hold`.

    Args:
        config: the `RendezvousConfig`.
        timeout: seconds to wait for the other workers.
        environment: the environment variables with the secret and the interface. Defaults to
            ``os.environ``.

    Raises:
        ValueError: if the config, the secret or the interface is not valid; on all workers, if
            they were started with different numbers of workers, secrets or releases of tf_adasum,
            or if two workers have the same rank.
        TimeoutError: if workers are missing, or worker 0 cannot be reached. The message names the
            workers, and the addresses of worker 0 that were tried.
        OSError: on worker 0, if another process uses the coordinator's port.
    """
    if config not in _joined:
        with contextlib.ExitStack() as stack:
            cluster = enter(config, timeout, environment, stack)
            _joined[config] = _Joined(cluster, stack.pop_all())
    return _joined[config].cluster


def enter(
    config: RendezvousConfig,
    timeout: float,
    environment: Mapping[str, str],
    stack: contextlib.ExitStack,
) -> Cluster:
    """Join as in `join`, and hold this worker's port until `stack` is closed."""
    _check(config)
    given = own_address.given(environment)
    own_secret = secret.read(environment)
    host, taken = addresses.split(config.coordinator)
    own_ports = (each for each in ports.candidates() if each != taken)
    (port,) = stack.enter_context(ports.free_ports(1, own_ports))
    own = {
        "settings": {WORKERS: config.num_workers, "tf_adasum": __version__},
        "host": given,
        "port": port,
        "job": config.job[:LONGEST_JOB],
    }
    joining = _Joining(config, own, own_secret, timeout, environment)
    if config.num_workers == 1:
        found = [addresses.joined(given or host, port)]
    elif config.rank == 0:
        found = joining.as_worker_0(stack)
    else:
        found = joining.as_other_worker()
    names = tuple(f"worker {rank}" for rank in range(config.num_workers))
    return Cluster(tuple(found), names, config.rank, is_star_topology=True)


def forget(cluster: Cluster) -> None:
    """Let the next `join` of this process begin anew, and release this worker's port.

    Args:
        cluster: a result of `join`. For other clusters, nothing is done.
    """
    for config, each in list(_joined.items()):
        if each.cluster == cluster:
            del _joined[config]
            each.open.close()


def _check(config: RendezvousConfig) -> None:
    received = (
        f"Received from {config.source}: coordinator {config.coordinator!r}, rank "
        f"{config.rank}, {config.num_workers} workers"
    )
    try:
        addresses.split(config.coordinator)
    except ValueError as error:
        raise ValueError(f"The coordinator's address is wrong: {error}. {received}") from error
    if config.num_workers < 1:
        raise ValueError(f"There must be at least one worker. {received}")
    if config.num_workers > MOST_WORKERS:
        raise ValueError(f"There may be at most {MOST_WORKERS} workers. {received}")
    if not 0 <= config.rank < config.num_workers:
        most = config.num_workers - 1
        raise ValueError(f"This worker's rank must be from 0 to {most}. {received}")


# ---- this worker's part --------------------------------------------------------------------------


class _Joining(Participant):
    def __init__(
        self,
        config: RendezvousConfig,
        own: dict[str, Any],
        own_secret: secret.Secret,
        timeout: float,
        environment: Mapping[str, str],
    ):
        first = f"worker 0 ({config.coordinator})"
        names = first, first if config.rank == 0 else f"worker {config.rank}"
        super().__init__(config.coordinator, config.rank, names, own_secret, timeout)
        self._config, self._own, self._environment = config, own, environment
        self._coordinator: Coordinator

    def as_worker_0(self, stack: contextlib.ExitStack) -> list[str]:
        """Return the addresses when all workers have joined; `stack` keeps the store open."""
        lock, count = threading.Lock(), self._config.num_workers
        coordinator = self._coordinator = Coordinator(self._config, self._run, self._own)
        server = StoreServer(self._listening(), self._secret, lock, coordinator, clients=count)
        stack.callback(server.close, 0.0)
        with self._session() as self._own_session:
            self._lead(coordinator, server, lock, _SECONDS_TO_SEND_RESULT)
        # until then, worker 0 answers late workers, and refuses restarted ones
        timer = threading.Timer(PATIENCE_SECONDS, server.close, [0.0])
        timer.daemon = True
        timer.start()
        return coordinator.addresses

    def as_other_worker(self) -> list[str]:
        """Return the addresses of all workers, as worker 0 sends them."""
        with self._session() as session:
            return self._follow(session)

    def _listening(self) -> socket.socket:
        until = time.monotonic() + min(_SECONDS_FOR_THE_PORT, self._timeout)
        own_task = Cluster((self._config.coordinator,), ("worker 0",), 0)
        while True:
            try:
                return ports.listening_socket(own_task)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() > until:
                    self._raise_error_of_another_worker_0()
                    raise
            time.sleep(POLL_SECONDS)

    def _raise_error_of_another_worker_0(self) -> None:
        until = time.monotonic() + _SECONDS_FOR_THE_PORT
        with self._session() as session:
            while time.monotonic() < until and (session.last.channel or not session.last.tried):
                if error := session.error():
                    raise ValueError(str(error)) from None
                time.sleep(POLL_SECONDS)

    def _error_of_another_worker_0(self) -> Exception | None:
        return self._own_session.error()

    def _description(self, channel: Channel) -> dict[str, Any]:
        host, _ = addresses.split(self._config.coordinator)
        end = own_address.of_end(channel.socket.getsockname())
        given = own_address.given(self._environment, ipv6_first=":" in end)
        return {**self._own, "host": given or end, "is_given": bool(given), "coordinator": host}

    def _result(self, session: Session) -> list[str] | None:
        found = session.result.get("addresses")
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            return None
        try:
            of_all = [addresses.split(each)[1] for each in found]
        except ValueError:
            return None
        is_all = len(set(found)) == self._config.num_workers == len(found)
        return found if is_all and of_all[self._config.rank] == self._own["port"] else None

    # ---- messages --------------------------------------------------------------------------------

    def _absent(self, session: Session | None) -> tuple[str, list[str]]:
        if session is None:
            missing = self._coordinator.named(self._coordinator.missing())
            own = self._own_session
            failures = "" if own.is_connected else self._tried(own.tried)
            return missing or "a worker that is being restarted", [failures]
        if session.is_connected:
            return session.text("missing") or "other workers", []
        return self._first, [self._tried(session.tried)]

    def _late(self, absent: str, failures: list[str]) -> str:
        sentences = [
            f"{self._name} waited {self._timeout:g} s, but {absent} did not start, or cannot be "
            "reached.",
            *failures,
            f"Start all {self._config.num_workers} workers, check that {self._first} can be "
            "reached from the other workers' machines, or wait longer with "
            f"{START_TIMEOUT}=SECONDS or tf.distribute.experimental.CommunicationOptions("
            f"timeout_seconds=...). The address comes from {self._config.source}. "
            f"{see('TFA-201')}",
        ]
        return " ".join(filter(None, sentences))

    def _tried(self, tried: dict[str, str]) -> str:
        host, _ = addresses.split(self._config.coordinator)
        whys = set(tried.values())
        if len(whys) == 1 and (sentence := wrong_program(whys.pop(), self._first)):
            return sentence
        shown = ", ".join(
            why if where == host else f"{where}: {why}" for where, why in tried.items()
        )
        name = "worker 0 itself" if self._config.rank == 0 else self._name
        return f"{name} cannot reach {self._first}: {shown}." if shown else ""
