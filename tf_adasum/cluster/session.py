"""A worker's session with the store of worker 0 or of another worker. Standard library only."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import json_lines, start_round, store_client
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.store import MEMBERS, REFUSED
from tf_adasum.cluster.store_client import ANSWERS, Call, StoreClient
from tf_adasum.cluster.timeouts import HEARTBEAT_SECONDS, POLL_SECONDS

_SECONDS_TO_CONNECT = 2.0
_LONGEST_TEXT = 4000  # characters
_CONNECTION_REFUSED = {os.strerror(errno.ECONNREFUSED)}


class Session:
    """A context manager that keeps a session with a worker's store, and reconnects if it ends.

    It runs in a thread, because a name look-up may take long. Below, "worker 0" is the worker with
    the store; `PortProbes` also uses this class for other workers.

    Args:
        address: "host:port" of worker 0's store.
        rank: the rank of this worker.
        run: the random name for this start of this worker.
        secret: the `Secret`.
        describe: function that returns the value of this worker's key for the connection to
            worker 0.

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
        rank: int,
        run: str,
        secret: Secret,
        describe: Callable[[Channel], dict[str, Any]],
    ):
        self.last = self._current = Call()
        self.is_connected = self.was_connected = False
        self.sent: dict[str, Any] | None = None
        self.unauthenticated_since: float | None = None
        self.refused_since: float | None = None
        self._address, self._rank, self._secret = address, rank, secret
        self._describe = describe
        self._own_key = f"{rank}/{run}"
        self._keys: dict[str, Any] = {}
        self._client: StoreClient | None = None
        self._stays = self.is_over = False
        self._replacement: Channel | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="tf_adasum session")
        self._ended, self._news = threading.Event(), threading.Event()

    def __enter__(self) -> Session:
        """Begin to call worker 0."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the session, without waiting for it."""
        self._ended.set()
        if client := self._client:
            client.stop()

    def close(self) -> None:
        """End the session, and wait until worker 0 has read all data, for at most a second."""
        self.__exit__()
        self._thread.join(HEARTBEAT_SECONDS)

    def stay(self, address: str) -> None:
        """Keep the session, of which worker 0's silence is no end any more, until `__exit__`.

        Args:
            address: "host:port" at which worker 0 then accepts connections.
        """
        self._address, self._stays = address, True
        if client := self._client:
            client.lease = math.inf

    def reconnect(self) -> None:
        """Replace the connection, which is silent, by a new one, in a separate thread."""
        threading.Thread(target=self._reconnect, daemon=True, name="tf_adasum reconnect").start()

    def _reconnect(self) -> None:
        old, channel = self._client, self._call(Call())
        if not old or not channel:
            return
        channel.send({"op": "set", "key": MEMBERS + self._own_key, "value": self.sent})
        channel.send({"op": "heartbeat"})
        until = time.monotonic() + _SECONDS_TO_CONNECT
        while {"heartbeat": True} not in channel.receive():  # what arrives before is known already
            if not channel.is_open or time.monotonic() > until:
                channel.close()
                return
            json_lines.wait([channel.socket], until - time.monotonic())
        channel.last_received_at = self.channel.last_received_at
        self._replacement = self.channel = channel
        old.close()  # worker 0 now has another connection for this key

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
        client = self._client
        if client is not None:
            self.sent = value
            client.set(value)

    def _run(self) -> None:
        try:
            self._keep_calling()
        finally:
            self.is_over = True
            self._news.set()

    def _call(self, call: Call) -> Channel | None:
        return store_client.call(
            self._address,
            self._secret,
            math.inf,
            rank=self._rank,
            seconds_to_connect=_SECONDS_TO_CONNECT,
            is_stopped=self._ended.is_set,
            found=call,
        ).channel

    def _keep_calling(self) -> None:
        pause = POLL_SECONDS
        while not self._ended.is_set():
            call = self._current = Call()
            channel = self._call(call)
            now = time.monotonic()
            self.unauthenticated_since = (
                None if call.unauthenticated is None else self.unauthenticated_since or now
            )
            whys = set(call.tried.values())
            is_refused = bool(whys & _CONNECTION_REFUSED) and not whys & ANSWERS
            self.refused_since = (self.refused_since or now) if is_refused else None
            self.last = call
            while channel:
                self._follow(channel)
                channel, self._replacement = self._replacement, None
            if self._stays:
                return
            pause = POLL_SECONDS if call.channel else min(HEARTBEAT_SECONDS, pause * 1.5)
            self._ended.wait(pause)

    def _follow(self, channel: Channel) -> None:
        """Follow the keys of worker 0 until the session ends."""
        self._keys = {}
        value = self.sent if self._stays else self._describe(channel)
        client = StoreClient(channel, self._own_key, threading.Lock(), self._deliver)
        client.lease = math.inf if self._stays else client.lease
        self.sent, self.channel = value, channel  # before another thread can set a newer value
        client.set(value)
        self._client = client
        self.is_connected = self.was_connected = True
        if not self._ended.is_set():
            client.follow()
        self.is_connected = False
        if not self._stays:
            self._client = None
        client.close(HEARTBEAT_SECONDS if self._ended.is_set() else 0.0)

    def _deliver(self, key: str, value: Any) -> None:
        self._keys[key] = value
        self._news.set()
