"""Run workers on hosts that may join and leave: ``--nnodes 1:4``.

Each host runs the same command. The launcher on the coordinator's host serves a store, see
`cluster.store`, and decides which hosts train, see `membership`. Each launcher sets the key of its
host, and follows the decisions:

    leader        the id of the host whose launcher decides
    ID            the host, see `Host`; deleted when its launcher ends or is silent
    round/N       the hosts of round N and the address of worker 0
    stop/N        the workers of round N have to stop
    refused/ID    why a host cannot join
    end           the job has ended

If the coordinator's host is lost, the other launchers wait for it, and end if it does not come
back. Uses only the standard library.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import queue
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from tf_adasum._version import __version__
from tf_adasum.cluster import addresses, secret, timeouts
from tf_adasum.cluster.messages import different_secrets
from tf_adasum.cluster.session import UNPROVEN, Session
from tf_adasum.cluster.store import StoreServer
from tf_adasum.environment_variables import START_TIMEOUT, start_timeout
from tf_adasum.errors import see
from tf_adasum.launch.failures import EXIT_STOP_REQUESTED, EXIT_TIMEOUT, EXIT_USAGE
from tf_adasum.launch.job_leader import JobLeader, listener_at
from tf_adasum.launch.jobs import SECONDS_TO_MEET, check, check_machine, launch
from tf_adasum.launch.membership import LOST_GRACE_SECONDS, Begin, End, Host, Membership
from tf_adasum.launch.nodes import Nodes
from tf_adasum.launch.output import Console
from tf_adasum.launch.processes import BACKUP_GRACE_SECONDS, Control, Ending, StopRequest
from tf_adasum.launch.signals import signals_sent_to


@dataclasses.dataclass(frozen=True)
class _Over:
    """An event: this launcher leaves the job.

    Attributes:
        status: its exit status; None if the store was lost.
        message: what it prints; "" for nothing.
    """

    status: int | None
    message: str


def launch_elastic(
    command: Sequence[str],
    num_workers: int,
    devices_per_worker: int | None,
    nnodes: tuple[int, int],
    coordinator: str | None,
    *,
    timeout: float | None = None,
    max_restarts: int = 0,
    **settings: Any,
) -> int:
    """Run `command` on this host, in rounds with the other hosts, until the job ends.

    Args:
        command: the complete argument vector of a worker.
        num_workers: the number of workers of this host.
        devices_per_worker: as for `jobs.launch`.
        nnodes: the smallest and the largest number of hosts that train. More hosts wait.
        coordinator: "host:port" at which the launcher of that host serves the store.
        timeout: seconds after which this launcher stops. Defaults to None: no limit.
        max_restarts: how often training restarts after a worker has failed. Lost hosts do not
            count.
        **settings: log_dir, verbose, bind_to, as for `jobs.launch`.

    Returns:
        The exit status of the job, as for `jobs.launch`.

    Raises:
        ValueError: if an argument cannot be used.
        ConnectionError: if the coordinator cannot be reached at the start.
    """
    check(command, num_workers, timeout, max_restarts)
    check_machine(num_workers, devices_per_worker, settings["log_dir"])
    Nodes(2, 0, coordinator)  # checks the address
    if addresses.split(coordinator)[0] in ("0.0.0.0", "::"):
        raise ValueError(
            "--coordinator: expected an address at which all hosts reach worker 0's host. "
            f"Received: --coordinator {coordinator}"
        )
    deadline = None if timeout is None else time.monotonic() + timeout
    control = Control()
    settings |= {"command": command, "devices_per_worker": devices_per_worker}
    may_serve, was_connected, has_finished = True, False, False
    with signals_sent_to(control.events):
        while True:
            # The coordinator's launcher may come back, so no other launcher replaces it.
            listener = listener_at(coordinator) if may_serve else None
            try:
                with _ElasticJob(
                    nnodes, coordinator, listener, max_restarts, control, num_workers, settings
                ) as job:
                    status = job.run(deadline, looks_again=may_serve and listener is None)
            except ConnectionError as error:
                if not was_connected:
                    raise
                finished = ", after its workers had exited with status 0" * has_finished
                Console(control.events).say(
                    f"this host leaves the job, because it lost the coordinator{finished}. {error}"
                )
                return 0 if has_finished else 1
            if status is not None:
                return status
            if job.is_connected:
                was_connected, may_serve = True, listener is not None
                has_finished |= job.has_finished
                time.sleep(timeouts.MOMENT_SECONDS)


class _ElasticJob:
    """A context manager: the session of this launcher, and the store on the coordinator's host.

    Attributes:
        session: the `Session` with the store.
        is_connected: whether `run` has taken part. The session may still connect when it ends.
    """

    def __init__(self, nnodes, coordinator, listener, max_restarts, control, num_workers, settings):
        self._nnodes, self._coordinator, self._control = nnodes, coordinator, control
        self.is_connected = False
        self._settings = settings
        self._own = Host(secrets.token_hex(8), socket.gethostname(), num_workers)
        self._console = Console(control.events)
        # The same on all hosts, so that another job does not join by mistake.
        script = json.dumps(settings["command"][1:])  # Python may be elsewhere
        self._job = f"{__version__} {hashlib.sha256(script.encode()).hexdigest()}"
        self._decisions: queue.SimpleQueue[Begin | _Over] = queue.SimpleQueue()
        self._running = 0  # the round whose workers run on this host
        self._stopped = 0.0  # the last round that was stopped
        self._message_at = 0.0  # when to say what this host waits for
        self._leader: JobLeader | None = None
        self._stack = contextlib.ExitStack()
        self._seconds = start_timeout(None) if os.environ.get(START_TIMEOUT) else SECONDS_TO_MEET
        key, lock = secret.read(), control.fork_lock
        if listener is not None:
            membership = Membership(*nnodes, max_restarts, self._own.id, self._seconds)
            self._leader = JobLeader(membership, self._own.id, self._job, coordinator)
            self._stack.callback(self._leader.close)
            self._server = StoreServer(listener, key, lock, self._leader, clients=nnodes[1])
            self._stack.callback(self._server.close)
        self.session = Session(
            coordinator,
            self._own.id,
            key,
            lambda channel: self._value(),
            fork_lock=lock,
            deliver=self._deliver,
            lost=self._lose,
        )

    def __enter__(self):
        """Begin to connect to the store."""
        self._console.say(f"connecting to the launcher at {self._coordinator}")
        self._stack.enter_context(self.session)
        return self

    def _connect(self, deadline: float | None, looks_again: bool) -> int | None:
        """Wait until the session has begun.

        Returns:
            The exit status after a signal or at the deadline; else None.

        Raises:
            ConnectionError: if the store cannot be reached.
        """
        session, until = self.session, time.monotonic() + self._seconds
        report_at = time.monotonic() + timeouts.PATIENCE_SECONDS
        while not session.was_connected:
            if number := self._signal():
                return 128 + number
            now = time.monotonic()
            if deadline is not None and now > deadline:
                return EXIT_TIMEOUT
            if looks_again and (listener := listener_at(self._coordinator)):
                listener.close()
                return None
            reason = next(reversed(session.tried.values()), "no answer")
            if session.kind == UNPROVEN:
                other = f"the launcher at {self._coordinator}"
                raise ConnectionError(different_secrets("this launcher", other))
            if now > until:
                raise ConnectionError(
                    f"The launcher at {self._coordinator} did not start, or cannot be reached "
                    f"({reason}) {see('TFA-201')}"
                )
            if now > report_at:
                report_at += timeouts.PATIENCE_SECONDS
                self._console.say(f"waiting for {self._coordinator}: {reason}")
        if self._leader is not None and not self._has_reached_own_store():
            self._console.say(f"joining the launcher that already runs at {self._coordinator}")
            self._server.close(0.0)
            self._leader = None
        return None

    def _signal(self) -> signal.Signals | None:
        """Return a signal to this launcher; None if there is none within a short time."""
        with contextlib.suppress(queue.Empty):
            event = self._control.events.get(timeout=timeouts.POLL_SECONDS)
            if isinstance(event, signal.Signals):
                return event
        return None

    def _has_reached_own_store(self):
        """Return False if the coordinator's address is also an address of another host."""
        until = time.monotonic() + timeouts.LEASE_SECONDS
        while not (leader := self.session.value("leader")) and time.monotonic() < until:
            self.session.wait(timeouts.POLL_SECONDS)
        return leader in (None, self._own.id)  # None: the store does not answer, and will be lost

    def __exit__(self, kind, error, traceback):
        """Leave the job."""
        if error is not None:
            self._end(1, f"failed with {kind.__name__}: {error}")
        self._stack.close()  # the server waits until the others have read the end

    def run(self, deadline: float | None, looks_again: bool) -> int | None:
        """Take part in rounds until the job ends.

        Args:
            deadline: by `time.monotonic`; None for no deadline.
            looks_again: whether this launcher may still have to listen at the coordinator's
                address. In a new pod, for example, the pod's own name may not be known yet, or may
                still be known as the address of the old pod. Or an earlier launcher still uses the
                port.

        Returns:
            The exit status of the job. None if the store was lost, or this launcher can now listen
            at the coordinator's address.
        """
        status = self._connect(deadline, looks_again)
        self.is_connected = self.session.was_connected
        if status is not None or not self.is_connected:
            return status
        while True:
            event = self._next(deadline)
            if event is None:
                return self._end(EXIT_TIMEOUT, "reached its --timeout")
            if isinstance(event, _Over):
                if event.message:
                    self._console.say(event.message)
                return event.status
            if isinstance(event, signal.Signals):
                was_asked = self._own.status == EXIT_STOP_REQUESTED  # and has made a backup
                status = EXIT_STOP_REQUESTED if was_asked else 128 + event
                return self._end(status, f"received {event.name}")
            if self._own.id not in [host.id for host in event.hosts]:
                continue
            result = self._train(event, deadline)
            if result.stopped_by is not None:
                self._leave(event.round, result, f"received {result.stopped_by.name}")
                return self._end(int(result), f"received {result.stopped_by.name}")
            is_late = deadline is not None and time.monotonic() > deadline
            if is_late and result:
                status = EXIT_TIMEOUT if result != EXIT_STOP_REQUESTED else EXIT_STOP_REQUESTED
                self._leave(event.round, result, "reached its --timeout")
                return self._end(status, "reached its --timeout")
            if is_late:  # but the workers have finished, so the other hosts will soon finish
                deadline = time.monotonic() + timeouts.PATIENCE_SECONDS
            self._report_end(event.round, result)
            self._message_at = time.monotonic() + timeouts.HEARTBEAT_SECONDS

    @property
    def has_finished(self) -> bool:
        """Whether the workers of this host have exited with status 0 in their last round."""
        return self._own.ended > 0 and self._own.status == 0

    def _train(self, event: Begin, deadline: float | None) -> Ending:
        """Run the workers of this host in a round."""
        with self._control.fork_lock:
            if self._stopped >= event.round:
                return Ending(128 + signal.SIGTERM)
            self._discard_stop_requests()
            self._running = event.round
        rank, count = [each.id for each in event.hosts].index(self._own.id), len(event.hosts)
        of_hosts = tuple(each.workers for each in event.hosts)
        workers = sum(of_hosts)
        total = f"{workers} worker{'s' * (workers > 1)} on {count} host{'s' * (count > 1)}"
        self._console.say(f"round {event.round}: {total}")
        try:
            return launch(
                num_workers=self._own.workers,
                timeout=None if deadline is None else max(0.1, deadline - time.monotonic()),
                nodes=Nodes(count, rank, event.coordinator, of_hosts) if count > 1 else None,
                control=dataclasses.replace(self._control, earlier_starts=event.round - 1),
                captures_output=True,
                **self._settings,
            )
        finally:
            with self._control.fork_lock:
                self._running = 0

    def _discard_stop_requests(self) -> None:
        """Remove the requests to stop earlier rounds from the queue; signals stay."""
        events = self._control.events
        for _ in range(events.qsize()):
            event = events.get_nowait()
            if isinstance(event, signal.Signals):
                events.put(event)

    def _next(self, deadline: float | None) -> Begin | _Over | signal.Signals | None:
        """Return the next decision or signal; None at the deadline."""
        while deadline is None or time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self._decisions.get_nowait()
            if time.monotonic() >= self._message_at:
                self._say_what_it_waits_for()
            if number := self._signal():
                return number
        return None

    def _say_what_it_waits_for(self) -> None:
        self._message_at = math.inf
        if self._leader is not None:
            self._message_at = time.monotonic() + timeouts.NOTICE_SECONDS
            with self._control.fork_lock:
                count = max(1, len(self._leader.hosts))
            least, most = self._nnodes
            self._console.say(f"waiting for hosts: {count} connected, --nnodes {least}:{most}")
        else:
            self._console.say("waiting for the next round")

    def _end(self, status: int, reason: str) -> int:
        """End the job if this launcher decides which hosts train; else the others continue.

        Args:
            status: the exit status of the job.
            reason: what has happened to this launcher, such as "received SIGTERM".
        """
        if self._leader is not None:
            with self._control.fork_lock:
                self._leader.end(End(status, f"the launcher at {self._coordinator} {reason}"))
            self._server.wake()
        return status

    def _leave(self, number: int, result: Ending, reason: str) -> None:
        """Let the others stop this round without losing the backup that they write."""
        if self._leader is None:
            self._report_end(number, result, reason)
            until = time.monotonic() + timeouts.ANSWER_SECONDS
            while self._stopped < number and time.monotonic() < until:
                time.sleep(timeouts.POLL_SECONDS)

    def _report_end(self, number: int, result: Ending, leaving: str = "") -> None:
        """Report that the workers of a round have ended on this host."""
        failed_first = result.first is not None and not result.first.is_because_of_another
        self._own = dataclasses.replace(
            self._own,
            ended=number,
            status=int(result),
            has_own_failure=failed_first,
            leaving=leaving,
        )
        self.session.set(self._value())

    def _value(self) -> dict[str, Any]:
        return {"job": self._job, "host": dataclasses.asdict(self._own)}

    # ---- called in the client's thread, which holds the lock -----------------------------------

    def _deliver(self, key: str, value: Any) -> None:
        kind = key.partition("/")[0]
        if value is None:
            return
        if kind == "round":
            value["hosts"] = [Host(**each) for each in value["hosts"]]
            self._decisions.put(Begin(**value))
        elif kind == "stop":
            self._stopped = value["round"]
            if self._running == self._stopped:
                self._control.events.put(StopRequest(value["reason"], value["grace"]))
        elif kind == "refused":
            self._decisions.put(_Over(EXIT_USAGE, value))
        elif kind == "end":
            reason = value["reason"]
            over = _Over(value["status"], reason and f"the job has ended: {reason}")
            self._stop_for_good(over, reason, BACKUP_GRACE_SECONDS)

    def _lose(self) -> None:
        reason = f"the launcher at {self._coordinator} was lost"
        self._stop_for_good(_Over(None, reason), reason, LOST_GRACE_SECONDS)

    def _stop_for_good(self, over: _Over, reason: str, grace: float) -> None:
        self._stopped = math.inf
        self._decisions.put(over)
        if self._running:
            self._control.events.put(StopRequest(reason, grace))
