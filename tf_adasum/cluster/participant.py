"""One worker's part in the `rendezvous`, and afterwards its connections. Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum._version import __version__
from tf_adasum.cluster import addresses, own_address, ports, secret, start_round
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.json_lines import printable
from tf_adasum.cluster.members import LONGEST_JOB
from tf_adasum.cluster.messages import different_secrets, lost, unreachable, wrong_host
from tf_adasum.cluster.session import Session
from tf_adasum.cluster.start_round import StartRound
from tf_adasum.cluster.store import StoreServer
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import (
    LEASE_SECONDS,
    PATIENCE_SECONDS,
    POLL_SECONDS,
)
from tf_adasum.environment_variables import START_TIMEOUT
from tf_adasum.errors import WorkerLostError, see

WORKERS = "number of workers"

# Seconds for which worker 0 retries if the coordinator's port is in use, because an earlier start
# may be about to end.
_SECONDS_FOR_THE_PORT = 3.0
# After its timeout, a worker waits for this many more seconds, because worker 0 may have the same
# timeout, and then sends an error that is more precise.
_SECONDS_FOR_THE_RESULT = 2.0
# For a worker that listens at its own address to prove the secret, which takes milliseconds.
_SECONDS_TO_PROVE = 3.0
# Two times in seconds for which worker 0 sends an error of each kind. It first waits for the first
# time, so that all workers can connect. Then it waits until all workers have read the error, but
# not longer than the second time.
SECONDS_TO_SEND_ERROR = {
    "": (1.0, 10.0),
    "late": (1.0, 2.0),  # and the other kinds
    "secret": (LEASE_SECONDS + 1.0, 0.0),  # workers without the secret cannot read it
}


class Participant:
    """One worker's part of the rendezvous, and afterwards its connections to the others.

    Args:
        cluster: the `Cluster`.
        environment: the environment variables with the secret and the interface.

    Attributes:
        cluster: the `Cluster`; after `join`, with all addresses.
        is_over: whether `meet` or `close` was called; `meet` can be called once.
        payload: after `meet`, on all workers, the other data of worker 0.
        round: on worker 0, the `StartRound`, which reads and publishes the keys of the store.
        server: on worker 0, the `StoreServer`.
        session: on the others, the `Session` with worker 0.
    """

    server: StoreServer

    def __init__(self, cluster: Cluster, environment: Mapping[str, str]):
        self.cluster, self._rank = cluster, cluster.rank
        self._joins = not cluster.addresses
        self._environment, self._secret = environment, secret.read(environment)
        self.payload: dict[str, Any] = {}
        self.is_over = False
        self._in_use_since = math.inf  # see `_have_another_secret`
        self._settings: dict[str, Any] | None = None
        self._run = secrets.token_hex(8)  # the random name for this start
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()  # until `close`
        self._held = contextlib.ExitStack()  # this worker's port, until `forget`
        where = cluster.coordinator if self._joins else cluster.addresses[0]
        key = f"{self._rank}/{self._run}"
        self.session = Session(where, key, self._secret, self._description, self._rank)
        self._own: dict[str, Any] = {"cluster": {"cluster": list(cluster.addresses)}}
        if self._joins:
            common = {WORKERS: cluster.num_workers, "tf_adasum": __version__}
            host, job = own_address.given(environment), printable(cluster.job, LONGEST_JOB)
            self._own = {"cluster": common, "host": host, "job": job}
        self.round = StartRound(cluster, self._run, self._own, bool(self._secret.key))

    def join(self, timeout: float) -> None:
        """Find the addresses of all workers, as `join` does."""
        self._begin(timeout)
        _, taken = addresses.split(self.cluster.coordinator)
        free = self._held.enter_context(ports.free_ports(2))
        self._own["port"] = next(each for each in free if each != taken)
        if self._rank == 0:
            self._serve(self._listener_of_coordinator())
            with self.session:  # does this worker itself answer at the coordinator's address?
                self._lead(lambda: bool(self.round.cluster.addresses))
            found = list(self.round.cluster.addresses)
        else:
            self._open.callback(self.session.__enter__().close)
            found = self._follow(self._addresses)
        self.cluster = dataclasses.replace(self.cluster, addresses=tuple(found))

    def meet(self, settings: dict[str, Any], payload: dict[str, Any], timeout: float) -> None:
        """Compare the settings of all workers."""
        self._begin(timeout)
        self.is_over = True
        cluster = self.cluster
        if not self._joins and (wrong := wrong_host(cluster)):
            raise ValueError(wrong)
        self._settings = settings  # also for a new session, which another thread begins
        if self._rank == 0:
            if not self._joins:
                self._serve(ports.listening_socket(cluster))
            self.payload = payload
            with self._lock:
                self.round.begin(settings, payload)
            self._lead(lambda: self.round.result is not None, PATIENCE_SECONDS)
            self.server.hand_over()
        else:
            with contextlib.ExitStack() as until_all_have_met:
                if not self._joins:  # so that no other worker can use this port, see TFA-205
                    until_all_have_met.enter_context(ports.listening_socket(cluster))
                    self._open.callback(self.session.__enter__().close)
                self.payload = self._follow(self._payload)
                self.session.stay()

    def publish(self, key: str, value: Any) -> None:
        """On worker 0, after the rendezvous, send a key to all."""
        with self._lock:
            self.round.publish(key, value)
        self.server.wake()

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

    # ---- what this worker serves and sends -------------------------------------------------------

    def _serve(self, listener: socket.socket) -> None:
        count = self.cluster.num_workers
        self.server = StoreServer(listener, self._secret, self._lock, self.round, clients=count)
        self._open.callback(self.server.close, 0.0)

    def _listener_of_coordinator(self) -> socket.socket:
        until = time.monotonic() + min(_SECONDS_FOR_THE_PORT, self._timeout)
        own_task = dataclasses.replace(self.cluster, addresses=(self.cluster.coordinator,))
        while True:
            try:
                return ports.listening_socket(own_task)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise
            time.sleep(POLL_SECONDS)

    def _value(self) -> dict[str, Any]:
        """Return the value of this worker's key, see `members.Member`."""
        return {**self._own, "settings": self._settings}

    def _description(self, channel: Channel) -> dict[str, Any]:
        """Return the value of this worker's key, for a connection to worker 0."""
        if not self._joins:
            return self._value()
        host, _ = addresses.split(self.cluster.coordinator)
        end = own_address.of_end(channel.socket.getsockname())
        given = own_address.given(self._environment, ipv6_first=":" in end)
        place = {"host": given or end, "is_given": bool(given), "coordinator": host}
        return {**self._value(), **place}

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
                if error := self.session.error():
                    leader.end(str(error), "elsewhere")
                elif time.monotonic() > self._deadline or (secrets_differ and leader.claimed()):
                    self._give_up()
                report = self._absent_for_worker_0() if self._is_report_due() else None
            if report:
                self._report(*report)
            if not self.server.is_serving:
                raise RuntimeError(
                    f"The store of {self.cluster.named([0])} has ended with an error, which is "
                    "printed above."
                )
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
        listened at each worker's address for some time, as a worker does in `meet`.
        """
        with self._lock:
            missing, claimed = self.round.missing(), self.round.claimed()
        where = map(self.cluster.address, claimed)
        is_in_use = claimed and claimed == missing and all(map(ports.is_in_use, where))
        self._in_use_since = min(self._in_use_since, time.monotonic()) if is_in_use else math.inf
        return time.monotonic() > self._in_use_since + _SECONDS_TO_PROVE

    def _give_up(self) -> None:
        if unproven := self.round.unproven():
            self.round.end(unproven, "secret")
        else:
            self.round.end(self._late(*self._absent_for_worker_0()), "late")

    # ---- the other workers -----------------------------------------------------------------------

    def _follow(self, result: Callable[[], Any]) -> Any:
        """Wait for worker 0's result, and return it; raise an error if the start fails.

        Args:
            result: function that returns the result; None until a valid result has arrived.
        """
        session, until = self.session, self._deadline + _SECONDS_FOR_THE_RESULT
        while (now := time.monotonic()) < until:
            if error := session.error():
                session.confirm()
                raise error
            self._update()
            if (found := result()) is not None:
                return found
            since = session.unauthenticated_since
            if since is not None and now > since + LEASE_SECONDS:
                break
            if now > self._deadline and session.tried and not session.is_connected:
                break
            if self._is_report_due():
                self._report(*self._absent())
            session.wait(POLL_SECONDS)
        unproven = session.last.unauthenticated
        if unproven is not None and not session.is_connected:
            others = {self.cluster.named([0]): unproven}
            own = self.cluster.named([self._rank])
            raise ValueError(different_secrets(own, bool(self._secret.key), others))
        raise TimeoutError(self._late(*self._absent()))

    def _addresses(self) -> list[str] | None:
        found = self.session.value("addresses")
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            return None
        try:
            of_all = [addresses.split(each)[1] for each in found]
        except ValueError:
            return None
        is_all = len(set(found)) == self.cluster.num_workers == len(found)
        return found if is_all and of_all[self._rank] == self._own["port"] else None

    def _payload(self) -> dict[str, Any] | None:
        payload = self.session.result.get("payload")
        if not isinstance(payload, dict):
            return None
        self.session.confirm()
        return payload

    def _update(self) -> None:
        """Send this worker's settings, and raise an error if worker 0 was lost."""
        if self._settings is None:
            return
        session, since = self.session, self.session.refused_since
        is_refused = since is not None and time.monotonic() > since + LEASE_SECONDS
        found = self._joins and self._addresses()
        has_restarted = found and tuple(found) != self.cluster.addresses  # it has another port now
        if has_restarted or (session.was_connected and is_refused):
            raise WorkerLostError(lost(self.cluster, 0))
        if session.sent and session.sent.get("settings") is None:
            session.set(self._value())

    def _failure(self) -> str:
        """Return a sentence if this worker cannot reach worker 0, see `messages.unreachable`."""
        session = self.session
        return "" if session.is_connected else unreachable(self.cluster, session.tried)

    # ---- messages --------------------------------------------------------------------------------

    def _absent_for_worker_0(self) -> tuple[str, str]:
        """Return the names of absent workers, and a sentence about a failed connection, or ""."""
        absent = self.round.absent() or "a worker that is being restarted"
        return absent, self.round.unproven() or self._failure()

    def _absent(self) -> tuple[str, str]:
        """As `_absent_for_worker_0`, for another worker."""
        if self.session.is_connected:
            return self.session.text("missing") or "other workers", self.session.text("unproven")
        return self.cluster.named([0]), self._failure()

    def _late(self, absent: str, failure: str) -> str:
        """Return the error message after the timeout."""
        source = self.cluster.source
        sentences = [
            f"{self.cluster.named([self._rank])} waited {self._timeout:g} s, but {absent} did not "
            "start, or cannot be reached.",
            failure,
            f"Start all {self.cluster.num_workers} workers, check that each address"
            f"{f' from {source}' if source else ''} can be reached from the other workers' "
            f"machines, or wait longer with {START_TIMEOUT}=SECONDS or "
            f"AdasumMirroredStrategy(start_timeout=SECONDS). {see('TFA-201')}",
        ]
        return " ".join(filter(None, sentences))

    def _is_report_due(self) -> bool:
        if time.monotonic() < self._next_message:
            return False
        self._next_message += PATIENCE_SECONDS
        return True

    def _report(self, absent: str, failure: str) -> None:
        waited = time.monotonic() - self._began
        line = f"tf_adasum: waiting for {absent} ({waited:.0f} of {self._timeout:g} s)."
        print(" ".join(filter(None, [line, failure])), file=sys.stderr, flush=True)
