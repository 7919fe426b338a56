"""A key/value store with watches and leases, which processes of several hosts share.

`Store` holds the keys, without any input or output. `StoreServer` serves it to clients, see
`store_client`. A client is a session: keys that it owns are deleted when its connection ends, or
when it has been silent for `LEASE_SECONDS`. A client that watches a prefix receives every change of
matching keys. All clients receive changes in the same order. Leases and watches work as in etcd.
Each client can set one key, which it owns. Only the `Leader`, which runs on the server, sets other
keys. Standard library only.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Hashable
from typing import Any, Protocol

from tf_adasum.cluster import json_lines, own_address
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret

LEASE_SECONDS = 5.0
HEARTBEAT_SECONDS = 1.0

_MOST_KEYS = 200_000  # at most a third of them are owned by sessions, so a leader can set its keys
_LONGEST_KEY = 200  # characters; also of a prefix
_MOST_PREFIXES = 100  # of a session
# The limits for unauthenticated clients: their number, to which `clients` is added, and their time.
_MOST_UNAUTHENTICATED = 32
_SECONDS_TO_AUTHENTICATE = 5.0
_OTHER_SESSIONS = 64  # for example of workers that restart
_OTHER_FILES = 256  # that the process may open
_POLL_SECONDS = 0.2
_SECONDS_TO_CLOSE = 2.0  # in which clients can read the last changes

Change = tuple[Any, str, Any]  # the session that receives it, the key, and the new value


class Store:
    """Keys with values (JSON types). The value of a missing key is None.

    Every method returns the changes that watching sessions have to receive.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._owners: dict[str, Hashable] = {}
        self._prefixes: dict[Hashable, set[str]] = {}

    def set(self, session: Hashable, key: str, value: Any, *, owned: bool = False) -> list[Change]:
        """Set a key; None deletes it.

        Args:
            session: the session that sets it.
            key: at most 200 characters.
            value: JSON types.
            owned: whether the key is deleted when the session ends. Defaults to `False`.

        Raises:
            ValueError: if the key is too long, or there are too many keys.
        """
        # A leader sets at most one key for each owned key, and a few others.
        is_full = key not in self._values and (
            len(self._values) >= _MOST_KEYS or (owned and len(self._owners) >= _MOST_KEYS // 3)
        )
        if value is not None and (len(key) > _LONGEST_KEY or is_full):
            raise ValueError(f"The store cannot hold another key. Received: {key[:_LONGEST_KEY]!r}")
        self._owners.pop(key, None)
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value
            if owned:
                self._owners[key] = session
        return [
            (watching, key, value)
            for watching, prefixes in self._prefixes.items()
            if any(key.startswith(prefix) for prefix in prefixes)
        ]

    def watch(self, session: Hashable, prefix: str) -> list[Change]:
        """Let a session receive the values of all keys with a prefix, and all later changes.

        Raises:
            ValueError: if the prefix is too long, or the session watches too many prefixes.
        """
        prefixes = self._prefixes.setdefault(session, set())
        if len(prefix) > _LONGEST_KEY or len(prefixes) >= _MOST_PREFIXES:
            raise ValueError("The session cannot watch another prefix.")
        prefixes.add(prefix)
        found = {key: value for key, value in self._values.items() if key.startswith(prefix)}
        return [(session, key, value) for key, value in found.items()]

    def end(self, session: Hashable) -> list[Change]:
        """End a session: delete the keys that it owns."""
        self._prefixes.pop(session, None)
        owned = [key for key, owner in self._owners.items() if owner == session]
        return [change for key in owned for change in self.set(session, key, None)]


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files, so that so many connections fit, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class Leader(Protocol):
    """Runs on the server, and sets the keys that clients may not set.

    Its methods run with `fork_lock` held.

    Attributes:
        prefix: the prefix of the keys that clients may set.
    """

    prefix: str

    def changed(self, key: str, value: Any, ends: tuple[str, str]) -> None:
        """Note that a client has set or lost a key.

        Args:
            key: the key, which begins with `prefix`.
            value: the new value; None if the key was deleted.
            ends: the IP addresses of the server and of the client in the client's connection.
        """

    def authentication_failed(self, rank: int, has_secret: bool) -> None:
        """Note what a client without the secret claims: its rank, and whether it has a secret."""

    def decide(self, now: float) -> dict[str, Any]:
        """Return new values of keys. This method is called after each change, and every 0.2 s."""


class StoreServer:
    """Serves a `Store` in a thread, from `__init__` to `close`.

    Args:
        listener: a listening socket, which this object will close.
        secret: the `Secret`, which each client has to prove.
        fork_lock: a lock that the thread holds while it runs Python code other than waiting. A
            process that holds it can fork safely.
        leader: the `Leader`.
        clients: the number of clients that may connect at the same time. It is added to the limit
            for unauthenticated clients, and limits nothing else. Defaults to 0.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: Secret,
        fork_lock: threading.Lock,
        leader: Leader,
        clients: int = 0,
    ):
        listener.setblocking(False)
        self._listener, self._secret, self._lock = listener, secret, fork_lock
        self._leader, self._most_unauthenticated = leader, _MOST_UNAUTHENTICATED + clients
        self._most_authenticated = 2 * clients + _OTHER_SESSIONS
        self._accepts_at = 0.0
        _allow_open_files(2 * self._most_authenticated)
        self._store = Store()
        self._store.watch("leader", leader.prefix)
        self._channels: dict[Channel, tuple[str, str]] = {}  # with the ends of the connection
        self._own_keys: dict[Channel, str] = {}
        self._closing_at = float("inf")
        self._wakes, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def is_serving(self) -> bool:
        """Whether the thread runs; an error of the leader ends it."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Let the leader decide at once."""
        with contextlib.suppress(OSError):  # this object is closed
            self._wake.send(b"\0")

    def close(self, seconds: float = _SECONDS_TO_CLOSE) -> None:
        """Close the port, after clients had time to read the last changes and disconnect.

        Args:
            seconds: for how long to wait for clients. Defaults to 2.
        """
        self._closing_at = time.monotonic() + seconds
        self.wake()
        self._thread.join()

    def _serve(self) -> None:
        try:
            self._serve_until_closing()
        finally:
            with self._lock:
                for channel in self._channels:
                    channel.close()
                for each in (self._listener, self._wakes, self._wake):
                    each.close()

    def _serve_until_closing(self) -> None:
        seconds = 0.0  # so that the leader decides at once
        while time.monotonic() < self._closing_at:
            if self._closing_at < float("inf") and not self._channels:
                return
            # A client that sends while this process is suspended must not count as silent.
            now = time.monotonic()
            sockets = [self._wakes, *(each.socket for each in self._channels)]
            if now >= self._accepts_at:
                sockets.append(self._listener)
            ready = json_lines.wait(sockets, seconds)
            seconds = _POLL_SECONDS
            if self._wakes.fileno() in ready:
                self._wakes.recv(1 << 12)
            with self._lock:
                if self._listener.fileno() in ready:
                    self._accept()
                for channel in self._channels:
                    if channel.socket.fileno() in ready:
                        self._handle_messages(channel)
                    channel.flush()
                self._drop_silent(now)
                for key, value in self._leader.decide(time.monotonic()).items():
                    self._deliver(self._store.set("leader", key, value))

    def _accept(self) -> None:
        try:
            while True:
                connection, peer = self._listener.accept()
                ends = own_address.of_end(connection.getsockname()), own_address.of_end(peer)
                channel = Channel(connection, self._secret, is_server=True)
                self._channels[channel] = ends
        except BlockingIOError:  # no more callers
            pass
        except OSError:  # no free file descriptor
            self._accepts_at = time.monotonic() + _POLL_SECONDS
        unauthenticated = [each for each in self._channels if not each.is_authenticated]
        for channel in unauthenticated[: -self._most_unauthenticated]:
            channel.is_open = False

    def _handle_messages(self, channel: Channel) -> None:
        try:
            for message in channel.receive():
                self._deliver(self._apply(channel, message), channel)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            channel.is_open = False  # an authenticated client has sent an invalid message
        if channel.is_refused and channel.claimed_rank is not None:
            self._leader.authentication_failed(channel.claimed_rank, channel.claims_secret)

    def _apply(self, channel: Channel, message: dict[str, Any]) -> list[Change]:
        if message["op"] == "set":
            key = str(message["key"])
            own = self._own_keys.setdefault(channel, key)
            if own != key or not key.startswith(self._leader.prefix):
                raise ValueError("Only the leader can set this key.")
            return self._store.set(channel, key, message["value"], owned=True)
        if message["op"] == "watch":
            return self._store.watch(channel, str(message["prefix"]))
        channel.send({"heartbeat": True})
        return []

    def _drop_silent(self, now: float) -> None:
        authenticated = [each for each in self._channels if each.is_authenticated]
        for channel in authenticated[self._most_authenticated :]:
            channel.is_open = False
        for channel in list(self._channels):
            is_late = not channel.is_authenticated and (
                now > channel.opened_at + _SECONDS_TO_AUTHENTICATE
            )
            if not channel.is_open or is_late or now > channel.last_received_at + LEASE_SECONDS:
                channel.close()
                self._deliver(self._store.end(channel), channel)
                del self._channels[channel]
                self._own_keys.pop(channel, None)

    def _deliver(self, changes: list[Change], source: Any = None) -> None:
        for session, key, value in changes:
            if session == "leader":
                self._leader.changed(key, value, self._channels[source])
            else:
                session.send({"key": key, "value": value})
