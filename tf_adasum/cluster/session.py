"""A worker's session with the store of worker 0, and why calls fail. Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import addresses
from tf_adasum.cluster.channel import Channel, wait
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.timeouts import (
    ANSWER_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    POLL_SECONDS,
)

# Why a call failed, if no system call failed.
NO_ANSWER = "another program answers there, or a suspended worker"
UNPROVEN = "the program that answers there does not have the secret"
REFUSED = os.strerror(errno.ECONNREFUSED)


def kind_of(tried: dict[str, str]) -> str:
    """Return the first of `UNPROVEN`, `NO_ANSWER` and `REFUSED` in what was tried; else ""."""
    return next((each for each in (UNPROVEN, NO_ANSWER, REFUSED) if each in tried.values()), "")


def call(
    address: str,
    secret: Secret,
    tried: dict[str, str],
    rank: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Channel | None:
    """Connect to a `StoreServer` at each of its addresses, until one address answers.

    Args:
        address: "host:port" of the server.
        secret: the `Secret`.
        tried: empty dict, which is filled with the addresses of the server, and why the attempt
            failed; empty again if it has succeeded. Another thread can read it meanwhile.
        rank: the rank of this worker, for the server's error messages. Defaults to None.
        is_stopped: function that returns whether to stop.

    Returns:
        The authenticated connection; None if there is none.
    """
    host, port = addresses.split(address)
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        tried[host] = getattr(error, "strerror", None) or "not a valid host name"
        return None
    for *_, where in candidates:
        at = "%".join([str(where[0]), *map(str, filter(None, where[3:]))])  # with its scope
        try:
            connection = socket.create_connection((at, port), ANSWER_SECONDS)
        except OSError as error:
            tried[at] = error.strerror or os.strerror(errno.ETIMEDOUT)
            continue
        channel = Channel(connection, secret, is_server=False, rank=rank)
        tried[at] = NO_ANSWER  # until it answers
        since = time.monotonic()
        while channel.is_open and time.monotonic() < since + LEASE_SECONDS and not is_stopped():
            wait(channel.socket, POLL_SECONDS)
            channel.receive()
            if channel.is_authenticated:  # failures at other addresses do not matter
                tried.clear()
                return channel
        if channel.is_refused:
            tried[at] = UNPROVEN
        channel.close()
    return None


@dataclasses.dataclass(eq=False)
class Session:
    """Keeps a session with a worker's store, and begins another at its end; a context manager.

    It runs in a thread, because a name look-up may take long. Below, "worker 0" is the process with
    the store, in an elastic job also a launcher.

    Args:
        address: "host:port" of worker 0's store.
        key: the key of this worker.
        secret: the `Secret`.
        describe: function that returns the value of the key for the connection to worker 0.
        rank: the rank of this worker, for worker 0's error messages. Defaults to None.
        fork_lock: as for `StoreServer`. Defaults to a new lock.
        deliver: function that receives each key that changes, and its value; None if the key was
            deleted. It runs with `fork_lock` held, and must not wait. Defaults to nothing.
        lost: function that is called with `fork_lock` held when the first session has ended by
            itself. Then worker 0 is not called again. Defaults to None: it is called again.

    Attributes:
        kind: the `kind_of` the last call on worker 0.
        since: the time since when each call has failed with the same `kind`.
        is_connected: whether the session has begun and not ended.
        was_connected: whether a session has begun.
        sent: the last value of this worker's key.
        channel: the connection of the last session.
        is_over: whether a session that `stay` keeps has ended.
    """

    address: str
    key: str
    secret: Secret
    describe: Callable[[Channel], dict[str, Any]]
    rank: int | None = None
    fork_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    deliver: Callable[[str, Any], None] = lambda key, value: None
    lost: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        """Begin without a session."""
        self.kind = ""
        self._tried: dict[str, str] = {}  # by the last call
        self._trying: dict[str, str] = {}  # by the call that runs
        self.is_connected = self.was_connected = self.is_over = self._stays = False
        self.sent: dict[str, Any] = {}
        self.since = time.monotonic()
        self.channel: Channel
        self._keys: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name="tf_adasum session")
        self._ended, self._news = threading.Event(), threading.Event()

    def __enter__(self) -> Session:
        """Begin to call worker 0."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the session, and wait until worker 0 has read all data, for at most a second."""
        self._ended.set()
        if self.is_connected:
            with self.fork_lock:
                self.channel.flush()
            with contextlib.suppress(OSError):
                self.channel.socket.shutdown(socket.SHUT_WR)
        self._thread.join(HEARTBEAT_SECONDS)

    def stay(self) -> None:
        """Keep the session, of which worker 0's silence is no end any more, until `__exit__`."""
        self._stays = True

    def wait(self, seconds: float) -> None:
        """Wait until a key has changed, or until the time is over."""
        self._news.wait(seconds)
        self._news.clear()

    @property
    def tried(self) -> dict[str, str]:
        """The reasons why addresses of worker 0 cannot be reached, see `call`."""
        return dict(self._tried or self._trying)

    def value(self, key: str) -> Any:
        """Return the value of a key; None if it has not arrived."""
        return self._keys.get(key)

    def take(self, key: str) -> Any:
        """Return a value that has arrived since the last call; None if none has."""
        return self._keys.pop(key, None)

    def set(self, value: dict[str, Any]) -> None:
        """Set this worker's key, if the session has begun."""
        if self.is_connected:
            self._send(value)

    def _send(self, value: dict[str, Any]) -> None:
        self.sent = value
        text = json.dumps({"op": "set", "key": self.key, "value": value})
        with self.fork_lock:
            self.channel.send_newest(text)

    def _run(self) -> None:
        try:
            self._keep_calling()
        finally:  # even if a function of the caller has raised an error
            self.is_over = True
            self._news.set()
            if self.lost and not self._ended.is_set():
                with self.fork_lock:
                    self.lost()

    def _keep_calling(self) -> None:
        pause = POLL_SECONDS
        while not self._ended.is_set():
            self._trying = {}
            own = self.rank, self._ended.is_set
            channel = call(self.address, self.secret, self._trying, *own)
            if (kind := kind_of(self._trying)) != self.kind:
                self.since = time.monotonic()
            self.kind, self._tried = kind, self._trying
            if channel:
                self._follow(channel)
            if self._stays or (self.lost and self.was_connected):
                return
            pause = POLL_SECONDS if channel else min(HEARTBEAT_SECONDS, pause * 1.5)
            self._ended.wait(pause)

    def _follow(self, channel: Channel) -> None:
        """Follow the keys of worker 0 until the session ends."""
        self._keys, self.channel = {}, channel
        self._send(self.describe(channel))  # before another thread can set a newer value
        self.is_connected = self.was_connected = True
        heartbeat_at = 0.0
        try:
            while not self._ended.is_set() and channel.is_open:
                # If this process is suspended in the wait, the server must not count as silent.
                now = time.monotonic()
                wait(channel.socket, HEARTBEAT_SECONDS)
                with self.fork_lock:
                    if now > heartbeat_at and not self._stays:
                        heartbeat_at = now + HEARTBEAT_SECONDS
                        channel.send({"op": "heartbeat"})
                    for message in channel.receive():
                        if isinstance(message, dict) and isinstance(message.get("key"), str):
                            self._keys[message["key"]] = message.get("value")
                            self.deliver(message["key"], message.get("value"))
                            self._news.set()
                    channel.flush()
                    is_silent = now >= channel.last_received_at + LEASE_SECONDS
                    channel.is_open &= self._stays or not is_silent
        finally:
            self.is_connected = False
            channel.close(time.monotonic() + HEARTBEAT_SECONDS if self._ended.is_set() else 0.0)
