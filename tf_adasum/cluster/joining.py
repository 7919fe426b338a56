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
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from tf_adasum._version import __version__
from tf_adasum.cluster import addresses, free_ports, own_address, secret, store_client
from tf_adasum.cluster.coordinator import LONGEST_JOB, WORKERS, Coordinator, joined, listed
from tf_adasum.cluster.environment_variables import START_TIMEOUT
from tf_adasum.cluster.handshake import printable
from tf_adasum.cluster.listener import listening_socket
from tf_adasum.cluster.peer_handshakes import ANOTHER_PROGRAM, NO_ANSWER
from tf_adasum.cluster.rendezvous import SECONDS_BETWEEN_MESSAGES, different_secrets
from tf_adasum.cluster.rendezvous_config import MOST_WORKERS, RendezvousConfig
from tf_adasum.cluster.store import StoreServer
from tf_adasum.cluster.store_client import Call, StoreClient
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import see

_SECONDS_TO_CONNECT = 2.0
# Seconds between calls on worker 0: the shortest pause, and the longest pause if worker 0 does not
# answer.
_SECONDS_BETWEEN_CALLS = (0.1, 1.0)
_POLL_SECONDS = 0.05
# Seconds after the timeout for which a worker waits for the result, because worker 0 may have the
# same timeout.
_SECONDS_FOR_THE_RESULT = 2.0
# Seconds for which worker 0's port may be in use by an earlier start that is about to end. Then
# another worker 0 at this port has the same time to answer.
_SECONDS_FOR_THE_PORT = 3.0
# Seconds after which a worker fails if no program at worker 0's address proves the secret. Until
# then, an earlier start that does not have the secret may answer.
_SECONDS_OF_DISTRUST = 5.0
# Seconds for which worker 0 sends an error: at least, so that all workers call, and at most.
_SECONDS_TO_SEND_ERROR = (1.0, 10.0)
# The most seconds for which worker 0 sends the addresses, or an error after a timeout.
_SECONDS_TO_SEND_RESULT = 2.0
# Seconds for which worker 0 then answers workers that have not received the result, or restart.
_SECONDS_TO_STAY = 10.0
_LONGEST_ERROR = 4000  # characters


@dataclasses.dataclass
class _Joined:
    cluster: Cluster
    open: contextlib.ExitStack  # holds this worker's port and, on worker 0, the coordinator


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
    own_ports = (each for each in free_ports.candidates() if each != taken)
    (port,) = stack.enter_context(free_ports.held(1, own_ports))
    own = {
        "settings": {WORKERS: config.num_workers, "tf_adasum": __version__},
        "host": given,
        "port": port,
        "job": config.job[:LONGEST_JOB],
    }
    joining = _Joining(config, own, own_secret, timeout, environment)
    if config.num_workers == 1:
        found = [joined(given or host, port)]
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


def _check(config):
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


# ---- the session with worker 0 -------------------------------------------------------------------


class _Session:
    """A context manager: this worker's session with worker 0, which begins again if it ends.

    It runs in a thread, because a name look-up may take long.

    Attributes:
        last: the last `Call` on worker 0.
        is_connected: whether the session has begun and not ended.
        distrusted_since: since when no program at worker 0's address has proved the secret; None if
            the last call has not failed for this reason.
    """

    def __init__(self, config, run, own, secret, environment, deadline):
        self.last, self.is_connected = Call(), False
        self.distrusted_since: float | None = None
        self._config, self._run, self._own = config, run, own
        self._secret, self._environment, self._deadline = secret, environment, deadline
        self._refused = f"refused/{config.rank}/{run}"
        self._keys: dict[str, Any] = {}
        self._ended, self._changed = threading.Event(), threading.Event()

    def __enter__(self) -> _Session:
        """Begin to call worker 0."""
        threading.Thread(target=self._keep_calling, daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        """End the session."""
        self._ended.set()
        self._changed.set()

    def missing(self) -> str:
        """Return the names of the workers that have not joined, as worker 0 sends them."""
        return printable(self._keys.get("missing"), _LONGEST_ERROR)

    def error(self) -> Exception | None:
        """Return the error that worker 0 has sent; None if it has not sent an error."""
        for key in (self._refused, "result"):
            response = self._keys.get(key)
            if isinstance(response, dict) and (
                wrong := printable(response.get("wrong"), _LONGEST_ERROR)
            ):
                return (TimeoutError if response.get("is_late") is True else ValueError)(wrong)
        return None

    def addresses(self) -> list[str]:
        """Return the addresses that worker 0 has sent; an empty list if it has not sent any."""
        response = self._keys.get("result")
        found = response.get("addresses") if isinstance(response, dict) else None
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            return []
        try:
            ports = [addresses.split(each)[1] for each in found]
        except ValueError:
            return []
        is_all = len(set(found)) == self._config.num_workers == len(found)
        return found if is_all and ports[self._config.rank] == self._own["port"] else []

    def _keep_calling(self):
        shortest, longest = _SECONDS_BETWEEN_CALLS
        pause = shortest
        while not self._ended.is_set():
            call = store_client.call(
                self._config.coordinator,
                self._secret,
                self._deadline,
                rank=self._config.rank,
                seconds_to_connect=_SECONDS_TO_CONNECT,
                is_stopped=self._ended.is_set,
            )
            self.distrusted_since = (
                None if call.unauthenticated is None else self.distrusted_since or time.monotonic()
            )
            self.last = call
            if call.channel:
                self._follow(call.channel)
            pause = shortest if call.channel else min(longest, pause * 1.5)
            self._ended.wait(pause)

    def _follow(self, channel):
        """Follow the keys of worker 0 until the session ends."""
        self._changed.clear()
        self._keys = {}
        host, _ = addresses.split(self._config.coordinator)
        end = own_address.of_end(channel.socket.getsockname())
        given = own_address.given(self._environment, ipv6_first=":" in end)
        member = {**self._own, "host": given or end, "is_given": bool(given), "coordinator": host}
        client = StoreClient(channel, threading.Lock(), self._deliver, self._changed.set)
        self.is_connected = True
        client.set(f"member/{self._config.rank}/{self._run}", member, owned=True)
        for key in (self._refused, "result", "missing"):
            client.watch(key)
        if not self._ended.is_set():
            self._changed.wait()  # until the session ends
        self.is_connected = False
        client.close()

    def _deliver(self, key, value):
        if key in (self._refused, "result", "missing"):
            self._keys[key] = value


# ---- this worker's part --------------------------------------------------------------------------


class _Joining:
    def __init__(self, config, own, own_secret, timeout, environment):
        self._config, self._own, self._secret = config, own, own_secret
        self._timeout, self._environment = timeout, environment
        self._run = secrets.token_hex(8)
        self._deadline = time.monotonic() + timeout
        self._next_message = time.monotonic() + SECONDS_BETWEEN_MESSAGES
        self._first = f"worker 0 ({config.coordinator})"
        self._name = self._first if config.rank == 0 else f"worker {config.rank}"

    def as_worker_0(self, stack) -> list[str]:
        """Return the addresses when all workers have joined; `stack` keeps the store open."""
        lock = threading.Lock()
        coordinator = Coordinator(self._config, self._run, self._own)
        listener, count = self._listening(), self._config.num_workers
        server = StoreServer(listener, self._secret, lock, coordinator, clients=count)
        stack.callback(server.close, 0.0)
        at_least, at_most = _SECONDS_TO_SEND_ERROR
        with self._session() as session:
            while not coordinator.addresses and not coordinator.wrong:
                with lock:
                    if error := session.error():  # from another worker 0
                        if coordinator.end(str(error)):
                            at_most = 0.0  # all other workers have joined there
                    elif time.monotonic() > self._deadline:
                        at_most = _SECONDS_TO_SEND_RESULT
                        self._give_up(coordinator, session)
                if self._is_report_due():
                    missing = ", ".join(listed(coordinator.missing())) or "a restarted worker"
                    _report(f"waiting for {missing}.")
                time.sleep(_POLL_SECONDS)
        if coordinator.wrong:
            time.sleep(at_least)
        until = time.monotonic() + (at_most if coordinator.wrong else _SECONDS_TO_SEND_RESULT)
        while not coordinator.has_informed_all() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        if coordinator.wrong:
            raise coordinator.error()
        timer = threading.Timer(_SECONDS_TO_STAY, server.close, [0.0])
        timer.daemon = True
        timer.start()
        return coordinator.addresses

    def as_other_worker(self) -> list[str]:
        """Return the addresses of all workers, as worker 0 sends them."""
        until = self._deadline + _SECONDS_FOR_THE_RESULT
        with self._session() as session:
            while (now := time.monotonic()) < until:
                if error := session.error():
                    raise error
                if found := session.addresses():
                    return found
                since, last = session.distrusted_since, session.last
                if since is not None and now > since + _SECONDS_OF_DISTRUST:
                    break
                if now > self._deadline and last.tried and not session.is_connected:
                    break
                if self._is_report_due() and not session.is_connected:
                    _report(f"waiting for {self._first}. {self._tried(last)}".rstrip())
                time.sleep(_POLL_SECONDS)
            last = session.last
            if last.unauthenticated is not None:
                others = {self._first: last.unauthenticated}
                raise ValueError(different_secrets(self._name, bool(self._secret.key), others))
            if session.is_connected:
                raise TimeoutError(self._late(session.missing() or "others"))
            raise TimeoutError(self._late(self._first, self._tried(last)))

    def _listening(self):
        until = time.monotonic() + min(_SECONDS_FOR_THE_PORT, self._timeout)
        own_task = Cluster((self._config.coordinator,), ("worker 0",), 0)
        while True:
            try:
                return listening_socket(own_task)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() > until:
                    self._raise_error_of_another_worker_0()
                    raise
            time.sleep(_SECONDS_BETWEEN_CALLS[0])

    def _raise_error_of_another_worker_0(self):
        until = time.monotonic() + _SECONDS_FOR_THE_PORT
        with self._session() as session:
            while time.monotonic() < until and (session.last.channel or not session.last.tried):
                if error := session.error():
                    raise ValueError(str(error)) from None
                time.sleep(_POLL_SECONDS)

    def _session(self):
        deadline = self._deadline + _SECONDS_FOR_THE_RESULT
        config, environment = self._config, self._environment
        return _Session(config, self._run, self._own, self._secret, environment, deadline)

    def _is_report_due(self):
        if time.monotonic() < self._next_message:
            return False
        self._next_message += SECONDS_BETWEEN_MESSAGES
        return True

    # ---- messages --------------------------------------------------------------------------------

    def _give_up(self, coordinator, session):
        missing = coordinator.missing()
        unauthenticated = {
            f"worker {rank}": coordinator.unauthenticated[rank]
            for rank in missing
            if rank in coordinator.unauthenticated
        }
        if unauthenticated:
            text = different_secrets(self._first, bool(self._secret.key), unauthenticated)
            coordinator.end(text)
            return
        failures = "" if session.is_connected else self._tried(session.last)
        absent = ", ".join(listed(missing)) or "a restarted worker"
        coordinator.end(self._late(absent, failures), is_late=True)

    def _late(self, absent, failures=""):
        sentences = [
            f"{self._name} waited {self._timeout:g} s, but {absent} did not start, or cannot be "
            "reached.",
            failures,
            f"Start all {self._config.num_workers} workers, check that {self._first} can be "
            "reached from the other workers' machines, or wait longer with "
            f"{START_TIMEOUT}=SECONDS or tf.distribute.experimental.CommunicationOptions("
            f"timeout_seconds=...). The address comes from {self._config.source}. "
            f"{see('TFA-201')}",
        ]
        return " ".join(filter(None, sentences))

    def _tried(self, call):
        host, _ = addresses.split(self._config.coordinator)
        whys = set(call.tried.values())
        if whys == {ANOTHER_PROGRAM}:
            return f"Another program answers at the address of {self._first}."
        if whys == {NO_ANSWER}:
            return (
                f"The program at the address of {self._first} does not answer. It is another "
                "program, or a suspended worker."
            )
        tried = ", ".join(
            why if where == host else f"{where}: {why}" for where, why in call.tried.items()
        )
        name = "worker 0 itself" if self._config.rank == 0 else self._name
        return f"{name} cannot reach {self._first}: {tried}." if tried else ""


def _report(text):
    print(f"tf_adasum: {text}", file=sys.stderr, flush=True)
