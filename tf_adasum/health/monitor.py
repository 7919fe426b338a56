"""The failure detector, which keeps workers from waiting forever for each other.

Every second, a thread of each worker sends its status (`Status`), receives the statuses of the
others (`cluster.rendezvous.Participant`), and decides whether this worker can continue
(`tf_adasum.health.diagnosis`). If not, the thread reports why and aborts TensorFlow's collectives,
which then raise an error.

TensorFlow's heartbeats do not detect a worker that is alive but never joins a collective. With a
timeout, each of TensorFlow's collectives needs a thread (version 2.21: 400 more for 100 steps).
"""

import atexit
import contextlib
import dataclasses
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tf_adasum.cluster import error_file, rendezvous
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, NOTICE_SECONDS, POLL_SECONDS
from tf_adasum.errors import WorkerLostError, hint, say
from tf_adasum.health import aggregate, call_log, call_site, diagnosis
from tf_adasum.health.diagnosis import CollectiveError, CollectiveErrorOf, Status
from tf_adasum.health.graceful_stop import GracefulStop
from tf_adasum.health.heartbeat_detector import HeartbeatDetector
from tf_adasum.health.reachability import Reachability

# HEARTBEAT_TIMEOUT: seconds after which a silent worker counts as lost; all workers should detect
# the loss within a minute. COLLECTIVE_TIMEOUT: seconds to wait for a worker that is alive, and may
# write a large checkpoint, if the strategy's `timeout` is not set.
HEARTBEAT_TIMEOUT, COLLECTIVE_TIMEOUT = 30.0, 600.0

# A process may hold Python's global lock for some seconds, and is silent during this time.
SHORTEST_TIMEOUT = 10.0
# Seconds for which the program has to stay at a line before the counters of collectives are read.
# After another worker has failed or ended, the counters are read at once.
_STILL = 2.0
# Seconds of waiting after which this worker tries to connect to the others. The result is known
# before `diagnosis.ALL_WAITING_GRACE` is over, and distinguishes a cut link from a deadlock.
_TRY = 3.0
# States in which a worker takes part in no call any more.
_GONE, _UNKNOWN = ("lost", "ended", "aborted"), Status()


def silence_limit(timeout: float) -> float:
    """Return the seconds of silence after which a worker counts as lost.

    These are 30 s. A `timeout` below 60 s shortens them to its half, at least 10 s. One above the
    default of 600 s lengthens them in proportion, for workers that hold Python's lock for long.
    """
    in_proportion = timeout * HEARTBEAT_TIMEOUT / COLLECTIVE_TIMEOUT
    return max(min(timeout / 2, HEARTBEAT_TIMEOUT), in_proportion, SHORTEST_TIMEOUT)


class HealthMonitor:
    """Runs the failure detector on this worker, in a thread.

    Args:
        cluster: the `Cluster`.
        met: the `rendezvous.Participant`, whose connections are used.
        timeout: the argument `timeout` of the strategy, the `collective_timeout`. Defaults to
            None: 600 s. See `silence_limit`.

    Attributes:
        cause: why this worker cannot continue; None as long as it can.
        collective_timeout: seconds to wait in a collective for workers that are alive.
        seed: a random int that worker 0 has drawn; None before the rendezvous.
        status: the `Status` of this worker.
        stopping: the `GracefulStop`, with which the workers agree on where to stop a training.
        reachability: the `Reachability`.
    """

    def __init__(self, cluster: Cluster, met: rendezvous.Participant, timeout: float | None = None):
        self.cause: str | None = None
        self.seed: int | None = None
        self._cluster = cluster
        self._met = met
        self.stopping = GracefulStop(cluster.rank, len(cluster.names), lambda: self.cause)
        self.collective_timeout = timeout or COLLECTIVE_TIMEOUT
        self._heartbeats = HeartbeatDetector(silence_limit(self.collective_timeout))
        self.status, self._lock = Status(), threading.Lock()
        # Other threads read these dicts, so they are replaced, and never changed.
        self._statuses: dict[int, Status] = {}
        self._heard: dict[int, float] = {}
        self._calls, self._depth = 0, 0
        self._counters: list[Callable[[], tuple[int, int, int]]] = []
        self._abort: Callable[[str], None] | None = None
        self._progress: tuple[int, int, int] | None = None
        self._waits_since = self._told = 0.0
        self._signature: Any = None
        self._still_since = time.monotonic()
        self._observed: int | None = None
        self._dangling = 0
        self._is_broken, self._has_unsent_status = False, False
        self.reachability = Reachability(cluster)
        self._last_round = time.monotonic()
        self._change = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="tf_adasum health")

    # ---- called by the worker's own threads ----------------------------------------------------

    def start(self) -> None:
        """Start to receive and send statuses."""
        atexit.register(self.stop)
        self._thread.start()

    def started(
        self, counters: Callable[[], tuple[int, int, int]], abort: Callable[[str], None]
    ) -> None:
        """Report that TensorFlow and a strategy have started.

        Args:
            counters: function that returns how many of the strategy's collectives this worker has
                entered and left, and the number of the collective that Python waits for.
            abort: function that ends all collectives with an error, whose message is its argument.

        Raises:
            WorkerLostError: if this worker already cannot continue.
        """
        monitors[self._cluster] = self
        self._counters.append(counters)
        self._abort = abort
        self._update_status(state="running")
        if self.cause:
            raise WorkerLostError(self.cause)

    @contextlib.contextmanager
    def call(self, error_of: CollectiveErrorOf) -> Iterator[None]:
        """Return a context manager that reports exceptions in a call of all workers, such as `fit`.

        Args:
            error_of: function that returns the `CollectiveError` in an exception, or None if
                no other worker has caused the exception.

        Raises:
            WorkerLostError: instead of an exception that other workers have caused.
        """
        if self._depth == 0 and self.status.state in ("running", "failed"):
            self._calls += 1
            self._observed = threading.get_ident()
            if self.status.state == "failed":  # this worker may have left collectives in the middle
                entered, left, _ = self._read_counters()
                self._dangling = entered - left
                call_log.begin_anew(self._calls)
            self._update_status(state="running", call=self._calls, in_call=1)
        self._depth += 1
        try:
            yield
        except WorkerLostError:
            raise
        except BaseException as error:
            collective_error = error_of(error)
            if collective_error is not None:
                if self._cause_if_known_soon(collective_error):
                    raise WorkerLostError(self.cause) from None
                if collective_error.line:
                    of_all = {**self._statuses, self._cluster.rank: self.status}
                    cut = self.reachability.unreachable
                    self._set_cause(diagnosis.broken(self._cluster, collective_error, cut, of_all))
                    raise WorkerLostError(self.cause) from error
            if self._depth == 1 and self.status.state == "running":
                self._update_status(state="failed", why=error_file.reason_of(error))
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                why = "" if self.status.state == "running" else self.status.why
                self._update_status(in_call=0, why=why)

    def others_fit_without_strategy(self) -> bool:
        """Return whether other workers also train a model outside the scope of the strategy.

        One worker alone may train such a model. The first call waits some seconds for the others.
        """
        number = self.status.fits_without_strategy + 1
        self._update_status(fits_without_strategy=number)
        deadline = time.monotonic() + (diagnosis.DIFFERENT_CALLS_GRACE if number == 1 else 0.0)
        while all(one.fits_without_strategy < number for one in self._statuses.values()):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def stop(self) -> None:
        """Report to the others that this worker ends; called at the end of the process."""
        if self._ending:
            return
        error = getattr(sys, "last_value", None)  # of the exception that ended the script
        why = self.status.why or (error_file.reason_of(error) if error is not None else "")
        if not self.cause:
            self._update_status(state="ended", why=why)
        self._ending = True
        if self._thread.ident:
            self._thread.join(5 * HEARTBEAT_SECONDS)

    def _cause_if_known_soon(self, collective_error: CollectiveError) -> str | None:
        """Wait some seconds for the cause of an error, as statuses may arrive after the error."""
        self._is_broken, self._has_unsent_status = True, True
        if collective_error.line and not collective_error.differ:
            self.reachability.try_now_and_then()
        try:
            with self._change:
                return self._change.wait_for(lambda: self.cause, 4 * HEARTBEAT_SECONDS)
        finally:
            self._is_broken = False

    def _update_status(self, **fields: Any) -> None:
        with self._lock:
            self.status = dataclasses.replace(self.status, **fields)
        if fields.get("state", "running") != "running" or "fits_without_strategy" in fields:
            self._has_unsent_status = True

    def _set_cause(self, cause: str) -> None:
        with self._change:
            if self.cause is not None:
                return
            self.cause = cause
            self._change.notify_all()
        self._update_status(state="aborted", why=cause)
        say(cause)

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending:
            try:
                self._round()
            except Exception:  # if this thread ended, the worker would count as lost
                say(traceback.format_exc())
                time.sleep(HEARTBEAT_SECONDS)
        self._send_statuses()
        self._met.close()

    def _round(self) -> None:
        deadline = time.monotonic() + HEARTBEAT_SECONDS
        while (seconds := deadline - time.monotonic()) > 0 and not (
            self._ending or self._has_unsent_status or self.stopping.has_unsent_status
        ):
            self._met.wait(min(seconds, 0.2))
            if self._receive_messages():
                break  # something has happened to a worker, so send the statuses at once
        self._observe()
        self._send_statuses()
        self._diagnose()

    def _receive_messages(self) -> bool:
        """Handle the messages that have arrived; return whether to send the statuses at once."""
        before, ended = self._statuses, []
        arrived: dict[int, Status] = {}
        for sender, message in self._met.receive():
            if message is None:
                ended.append(sender)
                continue
            try:
                found = aggregate.statuses_in(message, sender, len(self._cluster.names))
            except diagnosis.INVALID:
                hint(f"{self._cluster.named([sender])} has sent an invalid status")
                continue
            for rank in found.keys() - {self._cluster.rank}:
                if (arrived.get(rank) or before.get(rank, _UNKNOWN)).state not in _GONE:
                    arrived[rank] = found[rank]
        self._statuses = {**before, **arrived}
        self._heard = {**self._heard, **dict.fromkeys(arrived, time.monotonic())}
        for rank in ended:
            self._check_connection(rank)
        return any(
            self._statuses.get(rank, _UNKNOWN).urgent_fields
            != before.get(rank, _UNKNOWN).urgent_fields
            for rank in {*arrived, *ended}
        )

    def _check_connection(self, rank: int) -> None:
        """Set the status of a worker that sends nothing any more."""
        status, connection = self._statuses.get(rank, _UNKNOWN), self._met.connections.get(rank)
        if status.state in _GONE or connection is None:
            return
        silent, waits = time.monotonic() - connection.last_received_at, self.status.waiting_seconds
        if not connection.is_open and rank not in self._heartbeats.silent_but_active:
            why = "its process ended without reporting an error (killed, crashed or out of memory)"
            if status.state == "failed":
                why += f". It had failed before: {status.why}"
        elif self.status.state == "starting":  # until then, a start may keep others from sending
            return
        elif self._heartbeats.has_stopped(rank, silent, waits):
            why = f"it has sent nothing for {silent:.0f} s; it is suspended or disconnected"
        else:
            return
        self._statuses = {**self._statuses, rank: Status("lost", why)}

    def _observe(self) -> None:
        """Note which workers are silent, and update the status of this worker."""
        now = time.monotonic()
        if now - self._last_round > 5 * HEARTBEAT_SECONDS:
            # This process itself was suspended, so the others' silence is not a sign of a failure.
            for connection in self._met.connections.values():
                connection.last_received_at = now
        self._last_round = now
        for rank, connection in self._met.connections.items():
            # `receive` returns the end of a connection after all that was sent over it.
            if connection.is_open or rank in self._heartbeats.silent_but_active:
                self._check_connection(rank)
        received_at = [each.last_received_at for each in self._met.connections.values()]
        is_quiet = received_at and now - min(received_at) > 3 * HEARTBEAT_SECONDS
        self._heartbeats.note(self._read_counters()[1] if is_quiet else None)
        signature, at = call_site.of_thread(self._observed)
        if signature != self._signature:
            self._signature, self._still_since = signature, now
        progress: tuple[int, int, int] | None = None
        states = {status.state for status in self._statuses.values()}
        still = 0.0 if states & {"failed", *_GONE} else _STILL
        if signature and now - self._still_since >= still and self._counters:
            progress = self._read_counters()
        if progress != self._progress:
            self._progress, self._waits_since = progress, now
        entered, left, in_python = progress or (0, 0, 0)
        waits = progress is not None and entered - left > self._dangling
        seconds = now - self._waits_since if waits else 0.0
        if seconds >= _TRY:
            self.reachability.try_now_and_then()
        elif not self._is_broken:
            self.reachability.forget()
        self._update_status(
            collectives_entered=entered if waits else 0,
            python_collective=in_python if waits else 0,
            waiting_seconds=max(seconds, self.stopping.waits()),
            location=", ".join(filter(None, [at, call_log.doing()])),
            unreachable=self.reachability.unreachable if waits else "",
            calls=call_log.to_send(),
            **self.stopping.exchange(self._statuses),
        )

    def _read_counters(self) -> tuple[int, int, int]:
        if not self._counters:
            return 0, 0, 0
        entered, left, python_collective = zip(*(read() for read in self._counters), strict=True)
        return sum(entered), sum(left), max(python_collective)

    def _send_statuses(self) -> None:
        self._has_unsent_status = False
        if self._cluster.rank > 0:
            self._met.send({"status": dataclasses.asdict(self.status)})
            return
        statuses = self._statuses_as_of_now()
        somebody_waits = any(each.waiting_seconds for each in statuses.values())
        notable = {
            rank: status
            for rank, status in statuses.items()
            if rank == 0 or somebody_waits or status.state not in ("starting", "running")
        }
        self._met.send(aggregate.message_with(notable))

    def _statuses_as_of_now(self) -> dict[int, Status]:
        """Return all statuses. In an old one, `waiting_seconds` is 0: it may not wait any more."""
        old, now = time.monotonic() - 3 * HEARTBEAT_SECONDS, {self._cluster.rank: self.status}
        for rank, status in self._statuses.items():
            is_old = status.waiting_seconds and self._heard.get(rank, 0.0) <= old
            now[rank] = dataclasses.replace(status, waiting_seconds=0.0) if is_old else status
        return now

    def _diagnose(self) -> None:
        if self.cause is not None:
            return
        statuses = self._statuses_as_of_now()
        cause = diagnosis.different_calls(self._cluster, statuses, call_log.first_difference)
        limits = self.collective_timeout, self._is_broken
        cause = cause or diagnosis.failure(self._cluster, statuses, *limits)
        if cause is not None:
            self._set_cause(cause)
            self._send_statuses()
            if self._abort:
                self._abort(cause)
        elif self.status.waiting_seconds >= self._told + NOTICE_SECONDS:
            self._told += NOTICE_SECONDS
            say(diagnosis.waiting_message(self._cluster, statuses))
        elif not self.status.waiting_seconds:
            self._told = 0.0


class NullMonitor:
    """The failure detector of a process that trains alone, see `HealthMonitor`."""

    cause = seed = None
    status = Status()

    def __init__(self) -> None:
        self.stopping = GracefulStop(0, 1)

    @staticmethod
    def call(error_of: CollectiveErrorOf) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that does nothing, because there are no other workers."""
        del error_of
        return contextlib.nullcontext()

    @staticmethod
    def others_fit_without_strategy() -> bool:
        """Return False, because there are no other workers."""
        return False


monitors: dict[Cluster, HealthMonitor] = {}  # of the clusters of which TensorFlow has started


def begin(
    cluster: Cluster, settings: dict[str, Any], timeout: float | None, start_timeout: float
) -> HealthMonitor:
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
    if cluster in monitors:
        return monitors[cluster]
    error_file.begin()
    payload = {"seed": int.from_bytes(os.urandom(7), "big")}
    met = rendezvous.meet(cluster, settings, start_timeout, payload)
    made = HealthMonitor(cluster, met, timeout)
    made.seed = met.payload.get("seed")
    made.start()
    return made
