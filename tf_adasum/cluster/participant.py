"""One worker's part in the start of a cluster.

Worker 0 serves a store with a `StartRound`, and waits until all workers have joined. Each other
worker has a `Session` with this store, and waits for the result. Standard library only.
"""

from __future__ import annotations

import abc
import secrets
import sys
import threading
import time
from typing import Any

from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.session import Session
from tf_adasum.cluster.start_round import StartRound, different_secrets, error_of
from tf_adasum.cluster.store import StoreServer
from tf_adasum.cluster.timeouts import LEASE_SECONDS, PATIENCE_SECONDS, POLL_SECONDS
from tf_adasum.errors import WorkerLostError

# After its timeout, a worker waits for this many more seconds, because worker 0 may have the same
# timeout, and then sends an error that is more precise.
SECONDS_FOR_THE_RESULT = 2.0
# Two times in seconds for which worker 0 sends an error of each kind. It first waits for the first
# time, so that all workers can connect. Then it waits until all workers have read the error, but
# not longer than the second time. If another worker 0 has sent the error, the second time is 0,
# because the other workers are connected to that worker 0.
SECONDS_TO_SEND_ERROR = {
    "": (1.0, 10.0),
    "late": (1.0, 2.0),
    "lost": (1.0, 2.0),
    "secret": (LEASE_SECONDS + 1.0, 0.0),  # workers without the secret cannot read it
    "elsewhere": (1.0, 0.0),
}


class Participant(abc.ABC):
    """One worker's part in the start of a cluster.

    Args:
        address: "host:port" of worker 0's store.
        rank: the rank of this worker.
        names: the names of worker 0 and of this worker, with addresses if they are known.
        secret: the `Secret`.
        timeout: seconds.
    """

    def __init__(
        self, address: str, rank: int, names: tuple[str, str], secret: Secret, timeout: float
    ):
        self._address, self._rank, self._secret = address, rank, secret
        (self._first, self._name), self._timeout = names, timeout
        self._run = secrets.token_hex(8)  # the random name for this start
        self._deadline = time.monotonic() + timeout
        self._next_message = time.monotonic() + PATIENCE_SECONDS

    # ---- methods for subclasses ------------------------------------------------------------------

    @abc.abstractmethod
    def _description(self, channel: Channel) -> dict[str, Any]:
        """Return the value of this worker's key, for a connection to worker 0."""

    @abc.abstractmethod
    def _result(self, session: Session) -> Any:
        """Return the result that worker 0 has sent; None until a valid result has arrived."""

    @abc.abstractmethod
    def _absent(self, session: Session | None) -> tuple[str, list[str]]:
        """Return the names of absent workers, and sentences about failed connections.

        Args:
            session: the session with worker 0; None on worker 0, where the lock is held.
        """

    @abc.abstractmethod
    def _late(self, absent: str, failures: list[str]) -> str:
        """Return the error message after the timeout, see `_absent`."""

    def _error_of_another_worker_0(self) -> Exception | None:
        """Return the error that another worker 0 has sent to this worker 0; else None."""
        return None

    def _check(self, session: Session) -> None:  # noqa: B027 - nothing by default
        """Update this worker's key, or raise an error, while this worker waits for the result."""

    # ---- worker 0 --------------------------------------------------------------------------------

    def _lead(
        self, leader: StartRound, server: StoreServer, lock: threading.Lock, seconds: float
    ) -> None:
        """On worker 0, wait for the result, and until the other workers have read it.

        Args:
            leader: the leader of the store.
            server: the store's server.
            lock: the store's lock.
            seconds: the longest time for the other workers to read that the start has succeeded.

        Raises:
            ValueError, TimeoutError, WorkerLostError: if the start fails.
        """
        while leader.result is None:
            with lock:
                if error := self._error_of_another_worker_0():
                    leader.end(str(error), "elsewhere")
                elif time.monotonic() > self._deadline:
                    self._give_up(leader)
                report = self._absent(None) if self._is_report_due() else None
            if report:
                _report(*report)
            if not server.is_serving:
                raise RuntimeError(
                    f"The store of {self._first} has ended with an error, which is printed above."
                )
            server.wake()
            leader.wait(POLL_SECONDS)
        error = error_of(leader.result)
        if error:
            at_least, seconds = SECONDS_TO_SEND_ERROR[leader.result["kind"]]
            time.sleep(at_least)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with lock:
                if leader.has_informed_all():
                    break
                if not error and (text := leader.lost(time.monotonic())):
                    raise WorkerLostError(text)
            leader.wait(POLL_SECONDS)
        if error:
            raise error

    def _give_up(self, leader: StartRound) -> None:
        unproven = leader.unproven()
        if unproven:
            text = different_secrets(self._first, bool(self._secret.key), unproven)
            leader.end(text, "secret")
        else:
            leader.end(self._late(*self._absent(None)), "late")

    # ---- the other workers -----------------------------------------------------------------------

    def _session(self) -> Session:
        """Return a session with worker 0."""
        until = self._deadline + SECONDS_FOR_THE_RESULT
        arguments = self._rank, self._run, self._secret, until, self._description
        return Session(self._address, *arguments)

    def _follow(self, session: Session) -> Any:
        """Wait for worker 0's result, and return it; raise an error if the start fails."""
        until = self._deadline + SECONDS_FOR_THE_RESULT
        while (now := time.monotonic()) < until:
            if error := session.error():
                session.confirm()
                raise error
            if result := self._result(session):
                session.confirm()
                return result
            self._check(session)
            since = session.unauthenticated_since
            if since is not None and now > since + LEASE_SECONDS:
                break
            if now > self._deadline and session.tried and not session.is_connected:
                break
            if self._is_report_due():
                _report(*self._absent(session))
            session.wait(POLL_SECONDS)
        unproven = session.last.unauthenticated
        if unproven is not None and not session.is_connected:
            others = {self._first: unproven}
            raise ValueError(different_secrets(self._name, bool(self._secret.key), others))
        raise TimeoutError(self._late(*self._absent(session)))

    def _is_report_due(self) -> bool:
        if time.monotonic() < self._next_message:
            return False
        self._next_message += PATIENCE_SECONDS
        return True


def _report(absent: str, failures: list[str]) -> None:
    others = absent or "workers that cannot reach all others"
    line = " ".join(filter(None, [f"tf_adasum: waiting for {others}.", *failures]))
    print(line, file=sys.stderr, flush=True)
