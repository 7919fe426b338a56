"""A worker's session with the store of worker 0. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import json_lines, start_round, store_client
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.store import MEMBERS, REFUSED
from tf_adasum.cluster.store_client import ANSWERS, Call
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, LEASE_SECONDS, POLL_SECONDS

_LONGEST_TEXT = 4000  # characters
_CONNECTION_REFUSED = {os.strerror(errno.ECONNREFUSED)}


class Session:
    """A context manager that keeps a session with a worker's store, and begins another at its end.

    It runs in a thread, because a name look-up may take long. Below, "worker 0" is the process with
    the store, in an elastic job also a launcher.

    Args:
        address: "host:port" of worker 0's store.
        key: the key of this worker, without ``member/``.
        secret: the `Secret`.
        describe: function that returns the value of the key for the connection to worker 0.
        rank: the rank of this worker, for worker 0's error messages. Defaults to None.
        fork_lock: as for `StoreServer`. Defaults to a new lock.
        deliver: function that receives each key that changes, and its value; None if the key was
            deleted. It runs with `fork_lock` held, and must not wait. Defaults to nothing.
        lost: function that is called with `fork_lock` held when the first session has ended by
            itself. Then worker 0 is not called again. Defaults to None: it is called again.

    Attributes:
        last: the last `Call` on worker 0.
        is_connected: whether the session has begun and not ended.
        unauthenticated_since: the time since when each call has failed because the program at
            worker 0's address does not have the secret; None if the last call has not failed so.
        sent: the last value of this worker's key.
        refused_since: since when worker 0's address refuses connections; else None.
        was_connected: whether a session has begun.
        channel: the connection of the last session.
        is_over: whether a session that `stay` keeps has ended.
    """

    channel: Channel

    def __init__(
        self,
        address: str,
        key: str,
        secret: Secret,
        describe: Callable[[Channel], dict[str, Any]],
        rank: int | None = None,
        fork_lock: threading.Lock | None = None,
        deliver: Callable[[str, Any], None] = lambda key, value: None,
        lost: Callable[[], None] | None = None,
    ):
        self.last = self._current = Call()
        self.is_connected = self.was_connected = False
        self.sent: dict[str, Any] | None = None
        self.unauthenticated_since: float | None = None
        self.refused_since: float | None = None
        self._address, self._own_key, self._secret = address, key, secret
        self._describe, self._rank, self._lost = describe, rank, lost
        self._lock, self._deliver = fork_lock or threading.Lock(), deliver
        self._keys: dict[str, Any] = {}
        self._stays = self.is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="tf_adasum session")
        self._ended, self._news = threading.Event(), threading.Event()

    def __enter__(self) -> Session:
        """Begin to call worker 0."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the session, without waiting for it."""
        self._ended.set()
        if self.is_connected:
            with self._lock:
                self.channel.flush()
            with contextlib.suppress(OSError):
                self.channel.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the session, and wait until worker 0 has read all data, for at most a second."""
        self.__exit__()
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
        """The reasons why addresses of worker 0 cannot be reached, see `Call.tried`."""
        return dict(self.last.tried or self._current.tried)

    def value(self, key: str) -> Any:
        """Return the value of a key; None if it has not arrived."""
        return self._keys.get(key)

    def take(self, key: str) -> Any:
        """Return a value that has arrived since the last call; None if none has."""
        return self._keys.pop(key, None)

    @property
    def result(self) -> dict[str, Any]:
        """The value of the key `result`; an empty dict if worker 0 has not set it."""
        found = self._keys.get("result")
        return found if isinstance(found, dict) else {}

    def text(self, key: str) -> str:
        """Return the value of a key such as `missing`; "" if it is not a text, or not set."""
        return json_lines.printable(self._keys.get(key), _LONGEST_TEXT)

    def error(self) -> Exception | None:
        """Return the error that worker 0 has sent; None if it has not sent an error."""
        keys = REFUSED + self._own_key, "result"
        found = (start_round.error_of(self._keys.get(key)) for key in keys)
        return next(filter(None, found), None)

    def confirm(self) -> None:
        """Confirm to worker 0 that this worker has read the result."""
        self.set(start_round.HAS_RESULT)

    def set(self, value: dict[str, Any]) -> None:
        """Set this worker's key, if the session has begun."""
        if self.is_connected:
            self.sent = value
            self._send(self.channel, value)

    def _send(self, channel: Channel, value: dict[str, Any]) -> None:
        text = json.dumps({"op": "set", "key": MEMBERS + self._own_key, "value": value})
        with self._lock:
            channel.send_newest(text)

    def _run(self) -> None:
        try:
            self._keep_calling()
        finally:  # even if a function of the caller has raised an error
            self.is_over = True
            self._news.set()
            if self._lost and not self._ended.is_set():
                with self._lock:
                    self._lost()

    def _keep_calling(self) -> None:
        pause = POLL_SECONDS
        while not self._ended.is_set():
            call = self._current = Call()
            own = self._secret, self._rank, self._ended.is_set
            channel = store_client.call(self._address, *own, call).channel
            now = time.monotonic()
            self.unauthenticated_since = (
                None if call.unauthenticated is None else self.unauthenticated_since or now
            )
            whys = set(call.tried.values())
            is_refused = bool(whys & _CONNECTION_REFUSED) and not whys & ANSWERS
            self.refused_since = (self.refused_since or now) if is_refused else None
            self.last = call
            if channel:
                self._follow(channel)
            if self._stays or (self._lost and self.was_connected):
                return
            pause = POLL_SECONDS if call.channel else min(HEARTBEAT_SECONDS, pause * 1.5)
            self._ended.wait(pause)

    def _follow(self, channel: Channel) -> None:
        """Follow the keys of worker 0 until the session ends."""
        self._keys = {}
        value = self._describe(channel)
        self.sent, self.channel = value, channel  # before another thread can set a newer value
        self._send(channel, value)
        self.is_connected = self.was_connected = True
        try:
            self._receive(channel)
        finally:
            self.is_connected = False
            channel.close(time.monotonic() + HEARTBEAT_SECONDS if self._ended.is_set() else 0.0)

    def _receive(self, channel: Channel) -> None:
        heartbeat_at = 0.0
        while not self._ended.is_set() and channel.is_open:
            # If this process is suspended in the wait, the server must not count as silent.
            now = time.monotonic()
            json_lines.wait([channel.socket], HEARTBEAT_SECONDS)
            with self._lock:
                if now > heartbeat_at and not self._stays:
                    heartbeat_at = now + HEARTBEAT_SECONDS
                    channel.send({"op": "heartbeat"})
                for message in channel.receive():
                    if isinstance(message, dict) and isinstance(message.get("key"), str):
                        self._keys[message["key"]] = message.get("value")
                        self._deliver(message["key"], message.get("value"))
                        self._news.set()
                channel.flush()
                is_silent = now >= channel.last_received_at + LEASE_SECONDS
                channel.is_open &= self._stays or not is_silent
