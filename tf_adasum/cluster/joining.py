"""Joins workers that know only worker 0's address, their own rank and the number of workers.

Worker 0 listens at this address (`coordinator`). Each worker takes a free port, calls worker 0,
sends its rank and its address, and receives the addresses of all workers. The handshake and the
proof of the secret are the same as in the rendezvous (`handshake`). After joining, the workers
use their own ports for the `rendezvous`, as in any other cluster. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tf_adasum._version import __version__
from tf_adasum.cluster import addresses, free_ports, handshake, own_address, secret
from tf_adasum.cluster.coordinator import WORKERS, Coordinator, joined, listed
from tf_adasum.cluster.environment_variables import START_TIMEOUT
from tf_adasum.cluster.handshake import AuthenticationError, Hello, ProtocolError, printable
from tf_adasum.cluster.peer_handshakes import ANOTHER_PROGRAM, NO_ANSWER
from tf_adasum.cluster.rendezvous import SECONDS_BETWEEN_MESSAGES, different_secrets
from tf_adasum.cluster.rendezvous_config import MOST_WORKERS, RendezvousConfig
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import see

_SECONDS_TO_CONNECT = 2.0
# Seconds between calls on worker 0: the shortest pause, and the longest pause if worker 0 does not
# answer.
_SECONDS_BETWEEN_CALLS = (0.1, 1.0)
_POLL_SECONDS = 0.05
# Seconds for which a call on worker 0 may last after the timeout, because worker 0 may still wait
# for other workers.
_SECONDS_FOR_THE_LAST_CALL = 2.0
# Seconds for which worker 0's port may be in use by an earlier start that is about to end.
_SECONDS_FOR_THE_PORT = 3.0
# Seconds after which a worker fails if no program at worker 0's address proves the secret. Until
# then, an earlier start that does not have the secret may answer.
_SECONDS_OF_DISTRUST = 5.0
# Seconds for which worker 0 sends an error: at least, so that all workers call again, and at most.
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
    own = Hello(
        config.rank,
        secrets.token_hex(8),
        {WORKERS: config.num_workers, "tf_adasum": __version__},
        {"host": given, "port": port, "job": config.job},
    )
    joining = _RendezvousClient(config, own, own_secret, timeout, environment)
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


# ---- one call on the coordinator -----------------------------------------------------------------


@dataclasses.dataclass
class _Call:
    """The result of a call on worker 0.

    Attributes:
        response: the answer of worker 0; None if worker 0 was not reached.
        tried: dict from the addresses of worker 0 to why the call failed.
        unauthenticated: None, unless the program at worker 0's address failed to authenticate. In
            this case, whether this program claims to have a secret.
    """

    response: dict[str, Any] | None = None
    tried: dict[str, str] = dataclasses.field(default_factory=dict)
    unauthenticated: bool | None = None


def _call(coordinator: str, own: Hello, own_secret: Secret, environment, deadline) -> _Call:
    """Call the coordinator at each of its addresses, until one address answers."""
    call = _Call()
    host, port = addresses.split(coordinator)
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        call.tried[host] = error.strerror or str(error)
        return call
    except UnicodeError:
        call.tried[host] = "not a valid host name"
        return call
    for family, kind, protocol, _, where in candidates:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(_SECONDS_TO_CONNECT)
                connection.connect(where)
                call.tried[where[0]] = NO_ANSWER
                call.response = _exchange(connection, host, own, own_secret, environment, deadline)
                return call
        except ProtocolError:
            call.tried[where[0]] = ANOTHER_PROGRAM
        except AuthenticationError as error:
            call.unauthenticated = error.has_secret
            call.tried[where[0]] = "the program that answers there does not have the secret"
        except EOFError:
            call.tried[where[0]] = "the connection was closed at once"
        except TimeoutError:
            call.tried.setdefault(where[0], os.strerror(errno.ETIMEDOUT))
        except OSError as error:
            call.tried[where[0]] = error.strerror or str(error)
    return call


def _exchange(connection, host, own, own_secret, environment, deadline):
    """Return the answer of the coordinator at the other end of a connection."""
    end = connection.getsockname()
    ipv6_first = ":" in own_address.of_end(end)
    given = own_address.given(environment, ipv6_first=ipv6_first)
    payload = {
        **own.payload,
        "host": given or own_address.of_end(end),
        "is_given": bool(given),
        "coordinator": host,
        "patience": max(0.0, deadline - time.monotonic()) + _SECONDS_FOR_THE_LAST_CALL / 2,
    }
    theirs = handshake.call(connection, dataclasses.replace(own, payload=payload), own_secret)
    response = theirs.payload.get("response")
    if theirs.rank != 0 or not isinstance(response, dict):
        raise ProtocolError
    return response


# ---- this worker's part --------------------------------------------------------------------------


class _RendezvousClient:
    def __init__(self, config, own, own_secret, timeout, environment):
        self._config, self._own, self._secret = config, own, own_secret
        self._timeout, self._environment = timeout, environment
        self._deadline = time.monotonic() + timeout
        self._next_message = time.monotonic() + SECONDS_BETWEEN_MESSAGES
        self._first = f"worker 0 ({config.coordinator})"
        self._name = self._first if config.rank == 0 else f"worker {config.rank}"

    def as_worker_0(self, stack) -> list[str]:
        """Return the addresses when all workers have called; `stack` keeps the coordinator open."""
        coordinator = stack.enter_context(self._listening())
        with self._calling() as calls:
            own_call, (at_least, at_most) = _Call(), _SECONDS_TO_SEND_ERROR
            while not (found := coordinator.addresses()) and not coordinator.wrong:
                own_call = _last_of(calls) or own_call
                if wrong := _wrong(own_call.response or {}):  # from another worker 0
                    coordinator.end(wrong)
                    at_most = 0.0  # all other workers have called
                if time.monotonic() > self._deadline:
                    self._give_up(coordinator, own_call)
                    at_most = _SECONDS_TO_SEND_RESULT
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
        timer = threading.Timer(_SECONDS_TO_STAY, coordinator.close)
        timer.daemon = True
        timer.start()
        return found

    def as_other_worker(self) -> list[str]:
        """Return the addresses of all workers, as worker 0 sends them."""
        last, unauthenticated_since = _Call(), None
        with self._calling() as calls:
            while time.monotonic() < self._deadline:
                call = _last_of(calls)
                if (found := self._end(call)) is not None:
                    return found
                last = call or last
                if call is not None:
                    is_trusted = call.unauthenticated is None
                    unauthenticated_since = (
                        None if is_trusted else unauthenticated_since or time.monotonic()
                    )
                if (
                    unauthenticated_since
                    and time.monotonic() > unauthenticated_since + _SECONDS_OF_DISTRUST
                ):
                    break
                if self._is_report_due() and last.response is None:
                    _report(f"waiting for {self._first}. {self._tried(last)}".rstrip())
                time.sleep(_POLL_SECONDS)
            else:  # use worker 0's answer if it comes at the same time as the timeout
                with contextlib.suppress(queue.Empty):
                    last = calls.get(timeout=_SECONDS_FOR_THE_LAST_CALL)
                    if (found := self._end(last)) is not None:
                        return found
        if last.unauthenticated is not None:
            others = {self._first: last.unauthenticated}
            raise ValueError(different_secrets(self._name, bool(self._secret.key), others))
        if last.response is not None:
            missing = last.response.get("missing")
            is_list = isinstance(missing, list)
            ranks = [rank for rank in missing if type(rank) is int] if is_list else []
            raise TimeoutError(self._late(", ".join(listed(ranks)) or "others"))
        raise TimeoutError(self._late(self._first, self._tried(last)))

    def _end(self, call) -> list[str] | None:
        """Return the addresses if worker 0 has sent them; raise an error that worker 0 has sent."""
        response = (call and call.response) or {}
        if wrong := _wrong(response):
            raise (TimeoutError if response.get("is_late") is True else ValueError)(wrong)
        found = response.get("addresses")
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            return None
        try:
            ports = [addresses.split(each)[1] for each in found]
        except ValueError:
            return None
        is_all = len(set(found)) == self._config.num_workers == len(found)
        return found if is_all and ports[self._own.rank] == self._own.payload["port"] else None

    def _listening(self):
        until = time.monotonic() + min(_SECONDS_FOR_THE_PORT, self._timeout)
        while True:
            try:
                return Coordinator(self._config, self._own, self._secret)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() > until:
                    if wrong := _wrong(self._call().response or {}):  # from another worker 0
                        raise ValueError(wrong) from None
                    raise
            time.sleep(_SECONDS_BETWEEN_CALLS[0])

    def _call(self) -> _Call:
        where = self._config.coordinator
        return _call(where, self._own, self._secret, self._environment, self._deadline)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[queue.SimpleQueue[_Call]]:
        """Call the coordinator until the block ends.

        The calls are made in a thread, because a name look-up may take long.
        """
        calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        ended = threading.Event()

        def keep_calling():
            pause, longest = _SECONDS_BETWEEN_CALLS
            while not ended.is_set():
                call = self._call()
                calls.put(call)
                pause = _SECONDS_BETWEEN_CALLS[0] if call.response else min(longest, pause * 1.5)
                if self._config.rank == 0:  # worker 0 calls itself; one call is enough
                    pause = longest if call.response is None else self._timeout
                ended.wait(pause)

        threading.Thread(target=keep_calling, daemon=True).start()
        try:
            yield calls
        finally:
            ended.set()

    def _is_report_due(self):
        if time.monotonic() < self._next_message:
            return False
        self._next_message += SECONDS_BETWEEN_MESSAGES
        return True

    # ---- messages --------------------------------------------------------------------------------

    def _give_up(self, coordinator, own_call):
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
        failures = self._tried(own_call) if own_call.response is None else ""
        coordinator.end(self._late(", ".join(listed(missing)), failures), is_late=True)

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


def _last_of(calls):
    """Empty the queue `calls`, and return its last call; None if the queue was empty."""
    last = None
    with contextlib.suppress(queue.Empty):
        while True:
            last = calls.get_nowait()
    return last


def _wrong(response):
    """Return why the start fails on all workers; "" if it does not fail."""
    return printable(response.get("wrong"), _LONGEST_ERROR)
