"""Run workers on hosts that may join and leave: ``--nnodes 1:4``.

Each host runs the same command. The launcher on the coordinator's host serves a store, see
`cluster.store`, and decides who trains, see `membership`. Each launcher sets the key of its host,
and follows the decisions:

    member/ID     the host, see `Host`; deleted when its launcher ends or is silent
    round/N       the hosts of round N and the address of worker 0
    stop/N        the workers of round N have to stop
    end           the job has ended

If the coordinator's host is lost, the job ends. Uses only the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import queue
import re
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from tf_adasum.cluster import addresses, free_ports, secret
from tf_adasum.cluster.administration import START_TIMEOUT, start_timeout
from tf_adasum.cluster.coordinator import joined
from tf_adasum.cluster.store import StoreServer
from tf_adasum.cluster.store_client import StoreClient
from tf_adasum.launch.jobs import check, run_job
from tf_adasum.launch.membership import (
    LOST_GRACE_SECONDS,
    Begin,
    End,
    Host,
    Membership,
    Stop,
)
from tf_adasum.launch.nodes import Nodes
from tf_adasum.launch.output import Console
from tf_adasum.launch.processes import (
    BACKUP_GRACE_SECONDS,
    EXIT_TIMEOUT,
    Control,
    RunResult,
    StopRequest,
    signals_sent_to,
)

_RANGE = re.compile(r"(\d{1,4}):(\d{1,4})")
_SECONDS_TO_WAIT = 180.0  # for enough hosts, and for the coordinator; the environment can set it
_SECONDS_BETWEEN_LOOKS = 0.1
_BACKLOG = 256


@dataclasses.dataclass(frozen=True)
class _Lost:
    """An event: the store cannot be reached any more."""


@dataclasses.dataclass(frozen=True)
class _Round:
    """An event: a round begins."""

    number: int
    ids: Sequence[str]
    workers: Sequence[int]
    coordinator: str


def parse_range(text: str) -> tuple[int, int] | None:
    """Return the two numbers of "MIN:MAX"; None if the text is no range.

    Raises:
        ValueError: if the range is empty.

    Example:
        >>> parse_range("1:4"), parse_range("2")
        ((1, 4), None)
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    minimum, maximum = int(found[1]), int(found[2])
    if not 1 <= minimum <= maximum:
        raise ValueError(
            f"--nnodes: expected MIN:MAX with 1 <= MIN <= MAX. Received: --nnodes {text}"
        )
    return minimum, maximum


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
        max_restarts: how many rounds may end because a worker failed. Lost hosts do not count.
        **settings: log_dir, verbose, status and bind_to, as for `jobs.launch`.

    Returns:
        The exit status of the job, as for `jobs.launch`.

    Raises:
        ValueError: if an argument cannot be used.
        ConnectionError: if the coordinator cannot be reached, or is lost.
    """
    check(command, num_workers, timeout, max_restarts)
    Nodes(2, 0, coordinator)  # raises if the address is missing or wrong
    assert coordinator is not None
    deadline = None if timeout is None else time.monotonic() + timeout
    control = Control()
    console = Console(control.events)
    is_back = False
    with signals_sent_to(control.events):
        while True:
            try:
                # The coordinator's launcher may come back, so a client never takes its place.
                listener = None if is_back else _listener(coordinator)
                own = Host(secrets.token_hex(8), socket.gethostname(), num_workers)
                job = _ElasticJob(
                    own, nnodes, coordinator, listener, max_restarts, control, console
                )
            except ConnectionError as error:
                if not is_back:
                    raise
                console.say(f"the job has ended: {error}")
                return 1
            with job:
                status = job.run(command, devices_per_worker, deadline, settings)
            if status is not None:
                return status
            console.say(f"lost the launcher at {coordinator}: trying to reach it again")
            is_back = True


class _ElasticJob:
    """A context manager: the session of this launcher, and the store on the coordinator's host.

    Raises:
        ConnectionError: if the store cannot be reached.
    """

    def __init__(self, own, nnodes, coordinator, listener, max_restarts, control, console):
        self._coordinator, self._control, self._console = coordinator, control, console
        self._own, self._nnodes = own, nnodes
        self._joined: dict[str, Host] = {}  # in the order in which they joined
        self._decisions: queue.SimpleQueue[_Round | End | _Lost] = queue.SimpleQueue()
        self._running = 0  # the round whose workers run on this host
        self._stopped = 0  # the last round that was stopped
        self._membership: Membership | None = None
        self._port = contextlib.ExitStack()  # of worker 0, in the round that is running
        self._ports = free_ports.candidates()
        self._stack = contextlib.ExitStack()
        key, lock = secret.read(), control.fork_lock
        seconds = start_timeout(None) if os.environ.get(START_TIMEOUT) else _SECONDS_TO_WAIT
        if listener is not None:
            server = StoreServer(listener, key, lock)
            self._stack.callback(server.close)
            least, most = nnodes
            self._membership = Membership(least, most, max_restarts, self._own.id, seconds)
        tick = self._decide if listener is not None else None
        with self._stack.pop_all() as stack:  # closes the server if the next line raises
            self._client = StoreClient(
                coordinator, key, lock, self._deliver, self._lose, tick, seconds=seconds
            )
            self._stack = stack.pop_all()

    def __enter__(self):
        """Join the job."""
        self._report()
        watched = ("round/", "stop/", "end")
        for prefix in (*watched, "member/") if self._membership else watched:
            self._client.watch(prefix)
        return self

    def __exit__(self, *exception):
        """Leave the job."""
        self._client.close()
        self._port.close()
        self._stack.close()  # the server waits until the others have read the end

    def run(
        self,
        command: Sequence[str],
        devices_per_worker: int | None,
        deadline: float | None,
        settings: dict[str, Any],
    ) -> int | None:
        """Take part in rounds until the job ends; return its exit status, None if it is lost."""
        least, most = self._nnodes
        self._console.say(f"waiting for {least} to {most} hosts at {self._coordinator}")
        while True:
            event = self._next(deadline)
            if event is None:
                return EXIT_TIMEOUT
            if isinstance(event, _Lost):
                return None
            if isinstance(event, End):
                if event.reason:
                    self._console.say(f"the job has ended: {event.reason}")
                return event.status
            if isinstance(event, signal.Signals):
                return self._stopped_by(event, 128 + event)
            if self._own.id not in event.ids:
                self._console.say(f"round {event.number} runs without this host, which waits")
                continue
            result = self._train(event, command, devices_per_worker, deadline, settings)
            if result.stopped_by is not None:
                return self._stopped_by(result.stopped_by, result.code)
            if result.code == EXIT_TIMEOUT:
                return EXIT_TIMEOUT
            failed_first = result.first is not None and not result.first.is_because_of_another
            self._own = dataclasses.replace(
                self._own, ended=event.number, status=result.code, is_first=failed_first
            )
            self._report()

    def _train(
        self,
        event: _Round,
        command: Sequence[str],
        devices_per_worker: int | None,
        deadline: float | None,
        settings: dict[str, Any],
    ) -> RunResult:
        """Run the workers of this host in a round."""
        with self._control.fork_lock:
            if self._stopped >= event.number:
                return RunResult(128 + signal.SIGTERM)
            self._running = event.number
        rank, count = event.ids.index(self._own.id), len(event.ids)
        total = f"{sum(event.workers)} workers on {count} host{'s' * (count > 1)}"
        self._console.say(f"round {event.number}: {total}")
        try:
            return run_job(
                command,
                self._own.workers,
                devices_per_worker,
                None if deadline is None else max(0.1, deadline - time.monotonic()),
                nodes=Nodes(count, rank, event.coordinator, event.workers) if count > 1 else None,
                control=self._control,
                earlier_starts=event.number - 1,
                captures_output=True,
                **settings,
            )
        finally:
            with self._control.fork_lock:
                self._running = 0

    def _next(self, deadline: float | None) -> _Round | End | _Lost | signal.Signals | None:
        """Return the next decision or signal; None at the deadline."""
        while deadline is None or time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self._decisions.get_nowait()
            with contextlib.suppress(queue.Empty):
                event = self._control.events.get(timeout=_SECONDS_BETWEEN_LOOKS)
                if isinstance(event, signal.Signals):
                    return event
        return None

    def _stopped_by(self, number: signal.Signals, code: int) -> int:
        """End the job if this launcher decides who trains; otherwise the others continue."""
        if self._membership is not None:
            why = f"the launcher at {self._coordinator} was stopped by {number.name}"
            self._client.set("end", dataclasses.asdict(End(code, why)))
        return code

    def _report(self):
        self._client.set(f"member/{self._own.id}", dataclasses.asdict(self._own), owned=True)

    # ---- called in the client's thread, which holds the lock -----------------------------------

    def _deliver(self, key: str, value: Any) -> None:
        kind, _, name = key.partition("/")
        if value is None:
            self._joined.pop(name, None)  # unless it is another key
        elif kind == "member":
            self._joined[name] = Host(**value)
        elif kind == "round":
            self._decisions.put(_Round(**value))
        elif kind == "stop":
            self._stopped = value["round"]
            if self._running == self._stopped:
                self._control.events.put(StopRequest(value["reason"], value["grace"]))
        elif kind == "end":
            self._decisions.put(End(**value))
            self._stop_workers(value["reason"], BACKUP_GRACE_SECONDS)

    def _lose(self) -> None:
        self._decisions.put(_Lost())
        self._stop_workers(f"lost the launcher at {self._coordinator}", LOST_GRACE_SECONDS)

    def _stop_workers(self, reason, grace):
        if self._running:
            self._control.events.put(StopRequest(reason, grace))

    def _decide(self) -> None:
        assert self._membership is not None
        if self._own.id not in self._joined:
            return
        put = self._client.set_in_callback
        for decision in self._membership.decide(list(self._joined.values()), time.monotonic()):
            if isinstance(decision, Begin):
                begun = self._round(decision)
                for kind in ("round", "stop"):  # hosts that join later receive this round only
                    put(f"{kind}/{begun.number - 1}", None)
                put(f"round/{begun.number}", dataclasses.asdict(begun))
            elif isinstance(decision, Stop):
                put(f"stop/{decision.round}", dataclasses.asdict(decision))
            else:
                put("end", dataclasses.asdict(decision))

    def _round(self, begin: Begin) -> _Round:
        """Return the round with the address of worker 0, which is on this host."""
        self._port.close()
        (port,) = self._port.enter_context(free_ports.held(1, self._ports))
        host, _ = addresses.split(self._coordinator)
        return _Round(
            begin.round,
            [own.id for own in begin.hosts],
            [own.workers for own in begin.hosts],
            joined(host, port),
        )


def _listener(coordinator: str) -> socket.socket | None:
    """Return a socket that listens at the coordinator's address; None if another launcher does."""
    host, port = addresses.split(coordinator)
    if not _is_here(host):
        return None
    try:
        listener = addresses.bound(host, port, reuse=True)
        listener.listen(_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise ValueError(f"--coordinator: cannot listen at {coordinator}: {error}") from error
    return listener


def _is_here(host: str) -> bool:
    """Return whether a host, given by name or address, is this machine."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)
                return True
    return False
