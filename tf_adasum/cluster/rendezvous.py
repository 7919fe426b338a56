"""The rendezvous, in which the workers of a cluster connect before TensorFlow starts its server.

TensorFlow's own start-up prints nothing while it waits for a worker that never comes, and does not
detect that workers were started with different settings. So worker 0 first serves a store
(`store`): at the coordinator's address if the workers know only this address (`join`), otherwise at
its own port. Each worker begins a session with it, and receives the addresses of all workers if it
does not know them. In the same session, all send their settings (`meet`). Worker 0 decides
(`start_round`), and all receive the same result. Then worker 0 closes the port of the store, and
the failure detector uses the connections. If workers wait later, the links between them are tested
(`health.reachability`). Standard library only.
"""

import contextlib
import dataclasses
import math
import os
import secrets
import threading
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum._version import __version__
from tf_adasum.cluster import addresses, own_address, ports, secret, start_round
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.members import LONGEST_JOB
from tf_adasum.cluster.messages import different_secrets, lost, printable, unreachable, wrong_host
from tf_adasum.cluster.session import REFUSED, UNPROVEN, Session
from tf_adasum.cluster.start_round import HAS_RESULT, StartRound
from tf_adasum.cluster.store import REFUSED_KEYS, STATUSES, StoreServer
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import ANSWER_SECONDS, LEASE_SECONDS, PATIENCE_SECONDS, POLL_SECONDS
from tf_adasum.environment_variables import START_TIMEOUT
from tf_adasum.errors import WorkerLostError, say, see

WORKERS = "number of workers"

# Two times in seconds for which worker 0 sends an error of each kind. It first waits for the first
# time, so that all workers can connect. Then it waits until all workers have read the error, but
# not longer than the second time.
SECONDS_TO_SEND_ERROR = {
    "": (1.0, 10.0),
    "late": (1.0, 2.0),  # and the other kinds
    "secret": (LEASE_SECONDS + 1.0, 0.0),  # workers without the secret cannot read it
}
_LONGEST_TEXT = 4000  # characters

_ENDED = types.SimpleNamespace(is_open=False, last_received_at=0.0)  # before this worker could look


class Participant:
    """One worker's part of the rendezvous, and afterwards its connections to the others.

    After `meet`, a worker sets its key to its own status, and worker 0 publishes all statuses as
    one value (`health.aggregate`). On the way, a newer value replaces an older one. If a connection
    closes, the other process has ended; this is detected within milliseconds. If it is silent, the
    other process is suspended or cannot be reached.

    Args:
        cluster: the `Cluster`.
        environment: the environment variables with the secret and the interface.

    Attributes:
        cluster: the `Cluster`; after `join`, with all addresses.
        is_over: whether `meet` or `close` was called; `meet` can be called once.
        payload: after `meet`, on all workers, the other data of worker 0.
        connections: after `meet`, dict from ranks to `Channel`: on worker 0 those of all other
            workers, on the others that of worker 0.
        round: on worker 0, the `StartRound`, which reads and publishes the keys of the store.
        server: on worker 0, the `StoreServer`.
        session: on the others, the `Session` with worker 0.
    """

    server: StoreServer

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]):
        self.cluster, self._rank = cluster, cluster.rank
        self._joins = not cluster.addresses
        self._environment, self._secret = environment, secret.read(environment)
        self.payload: Any = None
        self.connections: dict[int, Any] = {}
        self.is_over = False
        self._in_use_since = math.inf  # see `_have_another_secret`
        self._settings: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()  # until `close`
        self._held = contextlib.ExitStack()  # this worker's port, until `forget`
        where = cluster.coordinator if self._joins else cluster.addresses[0]
        self._key = f"{self._rank}/{secrets.token_hex(8)}"  # random for this start
        self.session = Session(where, self._key, self._secret, self._description, self._rank)
        self._own: dict[str, Any] = {"cluster": {"cluster": list(cluster.addresses)}}
        if self._joins:
            common = {WORKERS: cluster.num_workers, "tf_adasum": __version__}
            host, job = own_address.given(environment), printable(cluster.job, LONGEST_JOB)
            self._own = {"cluster": common, "host": host, "job": job}
        self.round = StartRound(cluster, self._key, self._own)
        self.wait = self.session.wait if self._rank else self.round.wait

    def join(self, timeout: float) -> None:
        """Find the addresses of all workers, as `join` does."""
        self._begin(timeout)
        _, taken = addresses.split(self.cluster.coordinator)
        free = self._held.enter_context(ports.free_ports(2))
        self._own["port"] = next(each for each in free if each != taken)
        if self._rank == 0:
            self._serve(self.cluster.coordinator)
            with self.session:  # does this worker itself answer at the coordinator's address?
                self._lead(lambda: bool(self.round.cluster.addresses))
            found = list(self.round.cluster.addresses)
        else:
            self._open.enter_context(self.session)
            found = self._follow(self._addresses)
        self.cluster = dataclasses.replace(self.cluster, addresses=tuple(found))

    def meet(self, settings: dict[str, Any], payload: dict[str, Any], timeout: float) -> None:
        """Compare the settings of all workers."""
        self._begin(timeout)
        self.is_over = True
        if not self._joins and (wrong := wrong_host(self.cluster)):
            raise ValueError(wrong)
        self._settings = settings  # also for a new session, which another thread begins
        if self._rank == 0:
            if not self._joins:
                self._serve(self.cluster.addresses[0])
            self.payload = payload
            with self._lock:
                self.round.begin(settings, payload)
            self._lead(lambda: self.round.result is not None, PATIENCE_SECONDS)
            self.server.hand_over()
            owners, keys = self.server.owners, self.round.keys
            self.connections = {rank: owners.get(key, _ENDED) for rank, key in keys.items()}
        else:
            with contextlib.ExitStack() as until_all_have_met:
                if not self._joins:  # so that no other worker can use this port, see TFA-205
                    until_all_have_met.enter_context(ports.listening_socket(self.cluster))
                    self._open.enter_context(self.session)
                self.payload = self._follow(self._payload)
                self.session.stay()
            self.connections = {0: self.session.channel}

    def send(self, value: dict[str, Any]) -> None:
        """After `meet`, send a value to worker 0, or from worker 0 to all."""
        if self._rank:
            self.session.set(value)
            return
        with self._lock:
            self.round.publish(STATUSES, value)
        self.server.wake()

    def receive(self) -> list[tuple[int, Any]]:
        """After `meet`, return pairs of a rank and what it has sent; None if it has ended."""
        if self._rank == 0:
            arrived = self.round.arrived
            return [arrived.popleft() for _ in range(len(arrived))]
        is_over = self.session.is_over  # before the last look at the key
        value = self.session.take(STATUSES)
        return [] if value is None and not is_over else [(0, value)]

    def close(self) -> None:
        """End the connections; the other ends have a second to read what was sent."""
        self.is_over = True
        self._open.close()
        self._held.close()

    def forget(self) -> None:
        """Release this worker's port; end the connections unless the workers have met."""
        self._held.close()
        if not self.is_over:
            self.close()

    def _begin(self, timeout: float) -> None:
        self._timeout, self._began = timeout, (now := time.monotonic())
        self._deadline, self._next_message = now + timeout, now + PATIENCE_SECONDS

    def _serve(self, at: str) -> None:
        listener = ports.listening_socket(dataclasses.replace(self.cluster, addresses=(at,)))
        count = self.cluster.num_workers
        self.server = StoreServer(listener, self._secret, self._lock, self.round, clients=count)
        self._open.callback(self.server.close, 0.0)

    def _description(self, channel: Channel) -> dict[str, Any]:
        """Return the value of this worker's key, see `members.Member`."""
        value = {**self._own, "settings": self._settings}
        if self._joins:
            host, _ = addresses.split(self.cluster.coordinator)
            end = own_address.of_end(channel.socket.getsockname())
            given = own_address.given(self._environment, ipv6_first=":" in end)
            value |= {"host": given or end, "is_given": bool(given), "coordinator": host}
        return value

    # ---- worker 0 --------------------------------------------------------------------------------

    def _lead(self, is_done: Callable[[], bool], seconds: float = 0.0) -> None:
        """On worker 0, wait for the result, and until the other workers have read it.

        Args:
            is_done: function that returns whether this phase has succeeded.
            seconds: the longest time for the other workers to read that it has. Defaults to 0.

        Raises:
            ValueError, TimeoutError, WorkerLostError: if the start fails.
        """
        leader = self.round
        while leader.result is None and not is_done():
            secrets_differ = self._have_another_secret()
            with self._lock:
                is_late = time.monotonic() > self._deadline
                if error := self._error():
                    leader.end(str(error), "elsewhere")
                elif (is_late or secrets_differ) and (unproven := leader.unproven()):
                    leader.end(unproven, "secret")
                elif is_late:
                    leader.end(self._late(), "late")
            self._report_now_and_then()
            self.server.wake()
            leader.wait(POLL_SECONDS)
        error = start_round.error_of(leader.result)
        if error and leader.result:
            kind = leader.result["kind"]
            at_least, seconds = SECONDS_TO_SEND_ERROR.get(kind, SECONDS_TO_SEND_ERROR["late"])
            time.sleep(at_least)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self._lock:
                if leader.has_informed_all():
                    break
                if not error and (text := leader.lost(time.monotonic())):
                    raise WorkerLostError(text)
            leader.wait(POLL_SECONDS)
        if error:
            raise error

    def _have_another_secret(self) -> bool:
        """Return whether all missing workers have another secret than this one.

        Any client without the secret can claim to be these workers. So also some program must have
        listened at each worker's address for longer than a proof takes, as a worker does in `meet`.
        """
        with self._lock:
            missing, claimed = self.round.missing(), self.round.claimed()
        where = map(self.cluster.address, claimed)
        is_in_use = claimed and claimed == missing and all(map(ports.is_in_use, where))
        self._in_use_since = min(self._in_use_since, time.monotonic()) if is_in_use else math.inf
        return time.monotonic() > self._in_use_since + ANSWER_SECONDS

    # ---- the other workers -----------------------------------------------------------------------

    def _follow(self, result: Callable[[], Any]) -> Any:
        """Wait for worker 0's result, and return it; raise an error if the start fails.

        Args:
            result: function that returns the result; None until a valid result has arrived.
        """
        # Worker 0 may have the same timeout, and then sends an error that is more precise.
        session, until = self.session, self._deadline + ANSWER_SECONDS
        while (now := time.monotonic()) < until:
            if error := self._error():
                session.set(HAS_RESULT)
                raise error
            has_lasted = now > session.since + LEASE_SECONDS
            if self._settings is not None:
                self._check_worker_0(has_lasted)
                if session.is_connected and session.sent.get("settings") is None:
                    session.set(self._description(session.channel))
            if (found := result()) is not None:
                return found
            if session.kind == UNPROVEN and has_lasted:
                break
            if now > self._deadline and session.tried and not session.is_connected:
                break
            self._report_now_and_then()
            session.wait(POLL_SECONDS)
        if session.kind == UNPROVEN and not session.is_connected:
            raise ValueError(different_secrets(*map(self.round.named, (self._rank, 0))))
        raise TimeoutError(self._late())

    def _check_worker_0(self, has_lasted: bool) -> None:
        """Raise an error if worker 0 was lost after this worker has joined it."""
        session = self.session
        is_refused = session.was_connected and session.kind == REFUSED and has_lasted
        found = self._joins and self._addresses()  # of a new worker 0, which has another port
        if is_refused or (found and tuple(found) != self.cluster.addresses):
            raise WorkerLostError(lost(self.cluster, 0))

    def _addresses(self) -> list[str] | None:
        found = self.session.value("addresses")
        with contextlib.suppress(ValueError, TypeError):
            of_all = [addresses.split(each)[1] for each in found]
            if len(set(found)) == len(of_all) == self.cluster.num_workers:
                return found if of_all[self._rank] == self._own["port"] else None
        return None

    def _payload(self) -> dict[str, Any] | None:
        found = self.session.value("result")
        if not isinstance(found, dict) or not isinstance(found.get("payload"), dict):
            return None
        self.session.set(HAS_RESULT)
        return found["payload"]

    # ---- messages --------------------------------------------------------------------------------

    def _error(self) -> Exception | None:
        """Return the error that worker 0 has sent; None if it has not sent an error."""
        keys = REFUSED_KEYS + self._key, "result"
        found = (start_round.error_of(self.session.value(key)) for key in keys)
        return next(filter(None, found), None)

    def _absent(self) -> tuple[str, str]:
        """Return the names of absent workers, and a sentence about a failed connection, or ""."""
        session = self.session
        failure = "" if session.is_connected else unreachable(self.cluster, session.tried)
        if self._rank == 0:
            absent = self.round.absent() or "a worker that is being restarted"
            return absent, self.round.unproven() or failure
        if session.is_connected:
            keys = session.value("missing"), session.value("unproven")
            missing, unproven = (printable(each, _LONGEST_TEXT) for each in keys)
            return missing or "other workers", unproven
        return self.cluster.named([0]), failure

    def _late(self) -> str:
        """Return the error message after the timeout."""
        (absent, failure), source = self._absent(), self.cluster.source
        return (
            f"{self.cluster.named([self._rank])} waited {self._timeout:g} s, but {absent} did not "
            f"start, or cannot be reached.{failure and f' {failure}'} Start all "
            f"{self.cluster.num_workers} workers, check that each address"
            f"{source and f' from {source}'} can be reached from the other workers' machines, or "
            f"wait longer with {START_TIMEOUT}=SECONDS or "
            f"AdasumMirroredStrategy(start_timeout=SECONDS). {see('TFA-201')}"
        )

    def _report_now_and_then(self) -> None:
        """Print for whom this worker waits, every 10 s."""
        if (now := time.monotonic()) < self._next_message:
            return
        self._next_message += PATIENCE_SECONDS
        with self._lock:
            absent, failure = self._absent()
        seconds = f"{now - self._began:.0f} of {self._timeout:g} s"
        say(f"waiting for {absent} ({seconds}).{failure and f' {failure}'}")


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
