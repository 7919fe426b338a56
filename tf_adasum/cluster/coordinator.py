"""Collects the addresses of all workers on worker 0, and sends them to all workers.

A worker calls worker 0 and sends its address. Worker 0 answers when all workers have called, or
when something is wrong. Otherwise, it answers after some seconds with the list of missing workers,
and the worker calls again. So worker 0 can detect which workers are alive. A restarted worker
replaces its old process. If two workers have the same rank by mistake, both processes call again.
So worker 0 can distinguish them from a restarted worker. Standard library only.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from tf_adasum.cluster import addresses, handshake, own_address
from tf_adasum.cluster.handshake import AuthenticationError, Hello, ProtocolError, printable
from tf_adasum.cluster.listener import Listener, listening_socket
from tf_adasum.cluster.rendezvous_config import RendezvousConfig
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import see

# Seconds after which a call is answered in any case; the caller waits for 10 s.
_SECONDS_TO_HOLD = 3.0
# Seconds within which a replaced worker calls again if it is still alive.
_SECONDS_OF_DOUBT = _SECONDS_TO_HOLD + 2.0
_MOST_REPLACED = 100  # processes of one rank
_LONGEST_JOB = 200  # characters of a job's name
_RUN = re.compile(r"[0-9a-f]{16}")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # the interface in "fe80::1%eth0"

WORKERS = "number of workers"


@dataclasses.dataclass(frozen=True)
class Member:
    """A worker that has called worker 0.

    Attributes:
        run: a random name for this start of the worker, see `Hello`.
        host: the worker's host, as the worker sends it.
        port: the worker's port.
        is_given: whether the user has set the worker's host.
        coordinator: the host in the address at which the worker has called worker 0.
        is_local: whether the worker is on worker 0's machine.
        end: the host of worker 0 in the connection.
        connection: the connection of the worker's last call.
        doubted_until: a time, by `time.monotonic`. If this worker has replaced a process, worker 0
            waits until this time, because that process may still be alive and call again.
    """

    run: str
    host: str
    port: int
    is_given: bool
    coordinator: str
    is_local: bool
    end: str
    connection: socket.socket
    doubted_until: float = 0.0

    @property
    def address(self) -> str:
        """The address of the worker, with its port."""
        return joined(self.host, self.port)


def joined(host: str, port: int) -> str:
    """Return the address "host:port", or "[host]:port" if the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Coordinator:
    """A context manager that answers calls of workers.

    Args:
        config: this worker's `RendezvousConfig`.
        own: this worker's `Hello`, with its settings. Its payload has this worker's port, and
            this worker's host, which is empty unless the user has set it.
        secret: the `Secret`.

    Raises:
        OSError: as in `listener.listening_socket`.

    Attributes:
        wrong: why the start fails on all workers; "" if it has not failed.
        unauthenticated: for the rank of each caller that failed to authenticate, whether the caller
            claims to have a secret.
    """

    def __init__(self, config: RendezvousConfig, own: Hello, secret: Secret):
        self.wrong = ""
        self.unauthenticated: dict[int, bool] = {}
        self._config, self._own, self._secret = config, own, secret
        self._members: dict[int, Member] = {}
        self._replaced: dict[int, dict[str, str]] = {}  # from ranks to runs and their addresses
        self._informed: dict[int, str] = {}
        self._list: list[str] = []
        self._is_late = False
        self._lock = threading.Lock()
        self._settled = threading.Event()
        own_task = Cluster((config.coordinator,), ("worker 0",), 0)
        self._listener = Listener(listening_socket(own_task), self._answer, config.num_workers)

    def __enter__(self) -> Coordinator:
        """Begin to answer calls."""
        self._listener.open()
        return self

    def __exit__(self, *exception) -> None:
        """Close the port."""
        self.close()

    def close(self) -> None:
        """Close the port."""
        self._settled.set()
        self._listener.close()

    # ---- for worker 0 ---------------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Return the ranks of the workers that have not called."""
        return [rank for rank in range(1, self._config.num_workers) if rank not in self._members]

    def addresses(self) -> list[str]:
        """Return the addresses of all workers; an empty list until all workers have called."""
        with self._lock:
            now = time.monotonic()
            in_doubt = any(each.doubted_until > now for each in self._members.values())
            if not self._list and not self.wrong and not self.missing() and not in_doubt:
                self._list = self._all_addresses()
                twice = {address for address in self._list if self._list.count(address) > 1}
                if twice:
                    ranks = [rank for rank, each in enumerate(self._list) if each in twice]
                    self.wrong = (
                        f"Workers {', '.join(map(str, ranks))} have the same address: "
                        f"{', '.join(sorted(twice))}. On each of these workers, set "
                        f"{own_address.INTERFACE} to the address at which the other workers reach "
                        f"this worker. {see('TFA-206')}"
                    )
                    self._list = []
                self._settled.set()
            return self._list

    def end(self, why: str, *, is_late: bool = False) -> None:
        """Let the start fail on all workers.

        Args:
            why: the message of the error. It is ignored if the start has already failed, or if the
                addresses of all workers are already known.
            is_late: whether the error is a timeout. Defaults to `False`.
        """
        with self._lock:
            self._fail(why, is_late=is_late)

    def error(self) -> Exception:
        """Return the exception with which the start fails."""
        return (TimeoutError if self._is_late else ValueError)(self.wrong)

    def has_informed_all(self) -> bool:
        """Return whether all workers (after a timeout, all that called) received the result."""
        with self._lock:
            ranks = self._members if self._is_late else range(1, self._config.num_workers)
            if self._list:
                return all(self._informed.get(rank) == self._members[rank].run for rank in ranks)
            return all(rank in self._informed for rank in ranks)

    # ---- callers -------------------------------------------------------------------------------

    def _answer(self, connection):
        callers: list[Hello] = []

        def reply(theirs):
            response = self._of_another_job(theirs)
            if response is None:
                callers.append(theirs)
                response = self._add_caller(theirs, connection)
            self._listener.mark_authenticated(connection)
            if response is None:
                patience = theirs.payload.get("patience")
                is_number = type(patience) is float and 0 <= patience
                self._settled.wait(min(_SECONDS_TO_HOLD, patience if is_number else 0.0))
                response = self._response(theirs)
            return dataclasses.replace(self._own, payload={"response": response})

        try:
            handshake.answer(connection, 0, reply, self._secret)
        except AuthenticationError as error:
            if 0 < error.rank < self._config.num_workers:
                self.unauthenticated[error.rank] = error.has_secret
        except (ProtocolError, EOFError, OSError):
            pass  # another program; or a worker that has disconnected, and will call again
        else:
            if self.wrong or self._list:
                self._informed.update({each.rank: each.run for each in callers})

    def _of_another_job(self, theirs) -> dict[str, Any] | None:
        """Return the answer to a caller if it belongs to another job, else None."""
        jobs = self._config.job, theirs.payload.get("job")
        own, its = (printable(each, _LONGEST_JOB) for each in jobs)
        if not own or not its or own == its:
            return None
        wrong = (
            f"Another job's worker 0 answers at {self._config.coordinator}. That worker is of "
            f"job {own}, this worker is of job {its}. Give each job its own coordinator. "
            f"{see('TFA-212')}"
        )
        return {"wrong": wrong}

    def _add_caller(self, theirs, connection) -> dict[str, Any] | None:
        """Note a caller; return the answer if the caller has to get it at once, else None."""
        member = _member(theirs, connection)
        rank, count = theirs.rank, self._config.num_workers
        with self._lock:
            if theirs.run == self._own.run:
                return {}
            setting = self._different_setting(theirs)
            who = f"worker {rank} ({member.address})"
            if setting is not None:
                self._fail(
                    f"All workers must be started with the same {setting}. Received: "
                    f"{self._own.settings.get(setting)} on worker 0 ({self._config.coordinator}), "
                    f"{printable(str(theirs.settings.get(setting)), 100)} on {who} {see('TFA-207')}"
                )
            elif not 0 <= rank < count:
                self._fail(
                    f"A worker's rank must be from 0 to {count - 1}, because there are {count} "
                    f"workers. Received: {who}"
                )
            elif self._list:
                known = self._members.get(rank)
                if known is None or known.run != theirs.run:
                    at = known.address if known else self._config.coordinator
                    return {"wrong": _two_of(rank, at, member.address, count, has_joined=True)}
            elif rank == 0:
                own = self._config.coordinator
                self._fail(_two_of(0, own, member.address, count))
            else:
                self._add_member(rank, member, count)
        return None

    def _add_member(self, rank, member, count):
        self.unauthenticated.pop(rank, None)
        replaced, known = self._replaced.setdefault(rank, {}), self._members.get(rank)
        if known is not None and known.run != member.run:
            if member.run in replaced or len(replaced) >= _MOST_REPLACED:
                self._fail(_two_of(rank, known.address, member.address, count))
                return
            replaced[known.run] = known.address
            if not _is_closed(known.connection):
                until = time.monotonic() + _SECONDS_OF_DOUBT
                member = dataclasses.replace(member, doubted_until=until)
        elif known is not None:
            member = dataclasses.replace(member, doubted_until=known.doubted_until)
        self._members[rank] = member

    def _fail(self, why, *, is_late=False):
        if not self.wrong and not self._list:
            self.wrong, self._is_late = why, is_late
            self._settled.set()

    def _different_setting(self, theirs):
        own = self._own.settings
        return next(
            (setting for setting in own if own[setting] != theirs.settings.get(setting)), None
        )

    def _response(self, theirs):
        with self._lock:
            if self.wrong:
                return {"wrong": self.wrong, "is_late": self._is_late}
            if self._list:
                return {"addresses": self._list}
            return {"missing": self.missing()}

    def _all_addresses(self):
        """Return the addresses of all workers, by which the workers reach each other.

        A worker on worker 0's machine gets worker 0's host, unless the user has set its host.
        """
        members = self._members
        remote = [each for _, each in sorted(members.items()) if not each.is_local]
        own = self._own.payload["host"]
        if not own:
            called = {each.coordinator for each in remote or members.values()}
            own = called.pop() if len(called) == 1 else ""
            is_elsewhere = not own or own in ("0.0.0.0", "::") or own_address.is_loopback(own)
            if is_elsewhere and remote:
                own = remote[0].end
            elif not own or own in ("0.0.0.0", "::"):
                own = next(iter(members.values())).end
        hosts = {0: joined(own, self._own.payload["port"])}
        for rank, each in members.items():
            is_at_own = each.is_local and not each.is_given
            hosts[rank] = joined(own if is_at_own else each.host, each.port)
        return [hosts[rank] for rank in range(self._config.num_workers)]


def _member(theirs, connection):
    """Return the `Member` of a caller; raise `ProtocolError` if its data is not valid."""
    payload = theirs.payload
    host, port, coordinator = (payload.get(name) for name in ("host", "port", "coordinator"))
    if not isinstance(host, str) or not isinstance(coordinator, str) or len(coordinator) > 255:
        raise ProtocolError
    if type(port) is not int or not _RUN.fullmatch(theirs.run):
        raise ProtocolError
    try:
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)  # "::ffff:0.0.0.0"
        is_address = not (mapped or address).is_unspecified
        addresses.split(joined(host, port))
        addresses.split(joined(coordinator, port))
    except ValueError:
        raise ProtocolError from None
    _, has_scope, scope = host.partition("%")
    is_name = coordinator.isprintable() and " " not in coordinator
    if not is_address or not is_name or (has_scope and not _SCOPE.fullmatch(scope)):
        raise ProtocolError  # these texts are shown in terminals
    end = own_address.of_end(connection.getsockname())
    peer = own_address.of_end(connection.getpeername())
    is_given = payload.get("is_given") is True
    is_local = own_address.is_loopback(peer) or peer == end
    is_as_seen = is_given or host == peer
    return Member(
        theirs.run, host, port, is_given, coordinator, is_local and is_as_seen, end, connection
    )


def _two_of(rank, one, other, count, *, has_joined=False):
    again = " If this worker was restarted after all had joined, restart all workers."
    return (
        f"Two workers have the rank {rank}: one at {one} and one at {other}. Give each worker its "
        f"own rank, from 0 to {count - 1}.{again if has_joined else ''} {see('TFA-206')}"
    )


def _is_closed(connection) -> bool:
    """Return whether the caller has closed a connection; a waiting caller keeps it open."""
    number = connection.fileno()
    if number < 0:
        return False  # worker 0 has closed it after its answer
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))


def listed(ranks: list[int], most: int = 8) -> Iterator[str]:
    """Yield the names of some workers, and how many more there are."""
    yield from (f"worker {rank}" for rank in ranks[:most])
    if len(ranks) > most:
        yield f"{len(ranks) - most} more"
