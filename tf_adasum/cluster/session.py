"""A worker's session with the store of worker 0 or of another worker. Standard library only."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import json_lines, start_round, store_client
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.store_client import ANSWERS, Call, StoreClient

_SECONDS_TO_CONNECT = 2.0
# Seconds between calls on worker 0: the shortest pause, and the longest pause if worker 0 does not
# answer.
SECONDS_BETWEEN_CALLS = (0.1, 1.0)
_SECONDS_TO_CONFIRM = 1.0
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
        deadline: the deadline of calls, by `time.monotonic`.
        describe: function that returns the value of this worker's key for the connection to
            worker 0.
        keys: keys to receive in addition to `result` and `missing`. Defaults to none.

    Attributes:
        last: the last `Call` on worker 0.
        is_connected: whether the session has begun and not ended.
        unauthenticated_since: the time since when each call has failed because the program at
            worker 0's address does not have the secret; None if the last call has not failed so.
        sent: the last value of this worker's key.
        refused_since: since when worker 0's address refuses connections; else None.
        was_connected: whether a session has begun.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        run: str,
        secret: Secret,
        deadline: float,
        describe: Callable[[Channel], dict[str, Any]],
        keys: tuple[str, ...] = (),
    ):
        self.last = self._current = Call()
        self.is_connected = self.was_connected = False
        self.sent: dict[str, Any] | None = None
        self.unauthenticated_since: float | None = None
        self.refused_since: float | None = None
        self._address, self._rank, self._secret = address, rank, secret
        self._deadline, self._describe = deadline, describe
        self._own_key, self._refused_key = f"member/{rank}/{run}", f"refused/{rank}/{run}"
        self._watched = (self._refused_key, "result", "missing", *keys)
        self._keys: dict[str, Any] = {}
        self._client: StoreClient | None = None
        self._ended, self._changed, self._news = (threading.Event() for _ in range(3))

    def __enter__(self) -> Session:
        """Begin to call worker 0."""
        threading.Thread(target=self._keep_calling, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the session."""
        self._ended.set()
        self._changed.set()

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
        found = (start_round.error_of(self._keys.get(key)) for key in (self._refused_key, "result"))
        return next(filter(None, found), None)

    def confirm(self) -> None:
        """Confirm to worker 0 that this worker has read the result."""
        self.set(start_round.HAS_RESULT)

    def set(self, value: dict[str, Any]) -> None:
        """Set this worker's key, if the session has begun."""
        client = self._client
        if client is not None:
            self.sent = value
            client.set(self._own_key, value)

    def _keep_calling(self) -> None:
        shortest, longest = SECONDS_BETWEEN_CALLS
        pause = shortest
        while not self._ended.is_set() and time.monotonic() < self._deadline:
            call = self._current = Call()
            store_client.call(
                self._address,
                self._secret,
                self._deadline,
                rank=self._rank,
                seconds_to_connect=_SECONDS_TO_CONNECT,
                is_stopped=self._ended.is_set,
                found=call,
            )
            now = time.monotonic()
            self.unauthenticated_since = (
                None if call.unauthenticated is None else self.unauthenticated_since or now
            )
            whys = set(call.tried.values())
            is_refused = bool(whys & _CONNECTION_REFUSED) and not whys & ANSWERS
            self.refused_since = (self.refused_since or now) if is_refused else None
            self.last = call
            if call.channel:
                self._follow(call.channel)
            pause = shortest if call.channel else min(longest, pause * 1.5)
            self._ended.wait(pause)

    def _follow(self, channel: Channel) -> None:
        """Follow the keys of worker 0 until the session ends."""
        self._changed.clear()
        self._keys = {}
        value = self._describe(channel)
        client = StoreClient(channel, threading.Lock(), self._deliver, self._changed.set)
        self.sent = value  # before another thread can set a newer value
        client.set(self._own_key, value)
        self._client = client
        self.is_connected = self.was_connected = True
        for key in self._watched:
            client.watch(key)
        if not self._ended.is_set():
            self._changed.wait()  # until the session ends
        self.is_connected = False
        self._client = None
        client.close(_SECONDS_TO_CONFIRM)

    def _deliver(self, key: str, value: Any) -> None:
        if key in self._watched:
            self._keys[key] = value
            self._news.set()
