"""A session of a `store.StoreServer`. Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import addresses, json_lines
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.store import MEMBERS
from tf_adasum.cluster.timeouts import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    PATIENCE_SECONDS,
    POLL_SECONDS,
)
from tf_adasum.environment_variables import SECRET, SECRET_FILE
from tf_adasum.errors import see

# Why a call failed, if no system call failed.
ANOTHER_PROGRAM = "another program answers there"
NO_ANSWER = "the connection is accepted, but no answer comes"
UNPROVEN = "the program that answers there does not have the secret"

# With these reasons, some program accepts connections at the address.
ANSWERS = {ANOTHER_PROGRAM, NO_ANSWER, UNPROVEN}


def wrong_program(why: str, names: str) -> str:
    """Return a sentence if a reason shows that another program may answer; else "".

    Args:
        why: why a call failed.
        names: the names of the workers that were called.
    """
    if why == ANOTHER_PROGRAM:
        return f"Another program answers at the address of {names}."
    if why == NO_ANSWER:
        return (
            f"The program at the address of {names} does not answer. It is another program, or a "
            "suspended worker."
        )
    return ""


class StoreClient:
    """A session: sets its key, and receives the keys that the leader publishes.

    Args:
        channel: the connection to the server, from `connected` or `call`.
        key: this session's key, without ``member/``.
        fork_lock: as for `StoreServer`.
        deliver: function that receives each key that changes, and its value; None if the key was
            deleted. It runs with `fork_lock` held, and must not wait.

    Attributes:
        channel: the argument `channel`.
        lease: seconds of the server's silence after which the session ends; may be changed.
    """

    def __init__(
        self,
        channel: Channel,
        key: str,
        fork_lock: threading.Lock,
        deliver: Callable[[str, Any], None],
    ):
        self.channel, self._key, self._lock = channel, MEMBERS + key, fork_lock
        self._deliver = deliver
        self.lease = LEASE_SECONDS
        self._closing = False
        self._is_over = threading.Event()

    def begin(self, lost: Callable[[], None]) -> None:
        """Run `follow` in a thread; `lost` is called with the lock held if it ends by itself."""

        def run() -> None:
            try:
                self.follow()
            finally:  # even if a function of the caller has raised an error
                if not self._closing:
                    with self._lock:
                        lost()

        threading.Thread(target=run, daemon=True).start()

    def set(self, value: Any) -> None:
        """Set this client's key; a newer value may replace it on the way. Lock: not held."""
        text = json.dumps({"op": "set", "key": self._key, "value": value})
        with self._lock:
            self.channel.send_newest(text)

    def stop(self) -> None:
        """Let `follow` return when the server has read all data; this method does not wait."""
        self._closing = True
        with self._lock:
            self.channel.flush()
        with contextlib.suppress(OSError):
            self.channel.socket.shutdown(socket.SHUT_WR)

    def close(self, seconds: float = 0.0) -> None:
        """End the session.

        Args:
            seconds: the longest time to wait until the server has read all data. Defaults to 0.
        """
        self.stop()
        if not seconds:
            with contextlib.suppress(OSError):  # so that `follow` returns at once
                self.channel.socket.shutdown(socket.SHUT_RDWR)
        self._is_over.wait(seconds or None)
        self.channel.close(time.monotonic() + seconds)

    def follow(self) -> None:
        """Receive keys until the session ends."""
        heartbeat_at = 0.0
        try:
            while not self._closing and self.channel.is_open:
                # If this process is suspended in the wait, the server must not count as silent.
                now = time.monotonic()
                json_lines.wait([self.channel.socket], HEARTBEAT_SECONDS)
                with self._lock:
                    if now > heartbeat_at and self.lease < math.inf:
                        heartbeat_at = now + HEARTBEAT_SECONDS
                        self.channel.send({"op": "heartbeat"})
                    for message in self.channel.receive():
                        if isinstance(message, dict) and isinstance(message.get("key"), str):
                            self._deliver(message["key"], message.get("value"))
                    self.channel.flush()
                    self.channel.is_open &= now < self.channel.last_received_at + self.lease
        finally:
            self._is_over.set()


@dataclasses.dataclass
class Call:
    """The result of an attempt to connect to a server.

    Attributes:
        channel: the authenticated connection; None if there is none.
        tried: dict from the addresses of the server to why the attempt failed; empty if it has
            succeeded.
        unauthenticated: whether the program that failed to authenticate claims to have a secret;
            None if no program failed to authenticate, or if the attempt has succeeded.
    """

    channel: Channel | None = None
    tried: dict[str, str] = dataclasses.field(default_factory=dict)
    unauthenticated: bool | None = None


def call(
    address: str,
    secret: Secret,
    deadline: float,
    *,
    rank: int | None = None,
    seconds_to_connect: float = LEASE_SECONDS,
    is_stopped: Callable[[], bool] = lambda: False,
    found: Call | None = None,
) -> Call:
    """Connect to a server at each of its addresses, until one address answers.

    Args:
        address: "host:port" of the server.
        secret: the `Secret`.
        deadline: the deadline of the call, by `time.monotonic`; a name look-up may take longer.
        rank: the rank of this worker, for the server's error messages. Defaults to None.
        seconds_to_connect: the longest time for one address. Defaults to `LEASE_SECONDS`.
        is_stopped: function that returns whether to stop.
        found: the `Call` that is filled and returned; another thread can read it before this
            function returns. Defaults to a new one.
    """
    found = found or Call()
    host, port = addresses.split(address)
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        found.tried[host] = error.strerror or str(error)
        return found
    except UnicodeError:
        found.tried[host] = "not a valid host name"
        return found
    for family, kind, protocol, _, where in candidates:
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(seconds_to_connect)
            connection.connect(where)
        except OSError as error:
            is_late = isinstance(error, TimeoutError)
            why = os.strerror(errno.ETIMEDOUT) if is_late else error.strerror or str(error)
            found.tried[str(where[0])] = why
            if connection:
                connection.close()
            continue
        channel = Channel(connection, secret, is_server=False, rank=rank)
        since = time.monotonic()
        until = min(deadline, since + LEASE_SECONDS)
        while channel.is_open and time.monotonic() < until and not is_stopped():
            json_lines.wait([channel.socket], POLL_SECONDS)
            channel.receive()
            if channel.is_authenticated:  # failures at other addresses do not matter
                found.tried.clear()
                found.unauthenticated = None
                found.channel = channel
                return found
            if time.monotonic() > since + HEARTBEAT_SECONDS:  # for other threads
                found.tried[str(where[0])] = NO_ANSWER
        found.tried[str(where[0])] = NO_ANSWER if channel.is_open else _why_closed(channel)
        # If neither end has a secret, any program with this protocol can make a valid proof. So a
        # wrong proof comes from another program, not from a worker with another secret.
        if channel.is_refused and (secret.key or channel.claims_secret):
            found.unauthenticated = channel.claims_secret
            found.tried[str(where[0])] = UNPROVEN
        channel.close()
    return found


def _why_closed(channel: Channel) -> str:
    return ANOTHER_PROGRAM if channel.is_unknown else "the connection was closed at once"


def connected(
    address: str,
    secret: Secret,
    *,
    seconds: float,
    is_stopped: Callable[[], bool] = lambda: False,
    is_pointless: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda reason: None,
) -> Channel:
    """Return an authenticated connection to a launcher.

    Args:
        address: "host:port" of the launcher's server.
        secret: the `Secret`.
        seconds: for how long to try.
        is_stopped: function that returns whether to stop trying.
        is_pointless: function that returns whether to stop trying. It may take seconds, so it is
            only called between two attempts to connect.
        report: function that receives the reason, every 10 s, while no server answers.

    Raises:
        ConnectionError: if no server answers in time, or if the secrets differ.
        InterruptedError: if `is_stopped` or `is_pointless` has returned True.
    """
    deadline = time.monotonic() + seconds
    reason, report_at = "", time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if is_stopped() or is_pointless():
            raise InterruptedError
        if time.monotonic() > report_at:
            report_at += PATIENCE_SECONDS
            report(reason)
        found = call(address, secret, deadline, is_stopped=is_stopped)
        if found.channel:
            return found.channel
        if found.unauthenticated is not None:
            raise ConnectionError(
                "All launchers must be started with the same secret, in the variable "
                f"{SECRET} or in a file that {SECRET_FILE} names. Received: this launcher's secret "
                f"is not the secret of the launcher at {address}, or one of them has no secret "
                f"{see('TFA-207')}"
            )
        reason = next(reversed(found.tried.values()), reason)
        time.sleep(POLL_SECONDS)
    if is_stopped():
        raise InterruptedError
    raise ConnectionError(
        f"The launcher at {address} did not start, or cannot be reached ({reason}) {see('TFA-201')}"
    )
