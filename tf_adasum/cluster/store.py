"""A key/value store with watches and leases, which processes of several hosts share.

`Store` holds the keys, without any input or output. `StoreServer` serves it to clients, see
`store_client`. A client is a session: keys that it owns are deleted when its connection ends, or
when it has been silent for `LEASE_SECONDS`. A client that watches a prefix receives every change of
matching keys. All clients receive changes in the same order. Leases and watches are those of etcd.
Standard library only.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Hashable
from typing import Any

from tf_adasum.cluster import json_lines
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret

LEASE_SECONDS = 5.0
HEARTBEAT_SECONDS = 1.0

_MOST_KEYS = 10_000
_LONGEST_KEY = 200  # characters
# Clients that have not proved the secret: how many there may be, and for how long.
_MOST_UNAUTHENTICATED = 32
_SECONDS_TO_AUTHENTICATE = 5.0
_POLL_SECONDS = 0.2
_SECONDS_TO_CLOSE = 2.0  # in which clients can read the last changes

Change = tuple[Hashable, str, Any]  # the session that receives it, the key, and the new value


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
        is_full = key not in self._values and len(self._values) >= _MOST_KEYS
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
        """Let a session receive the values of all keys with a prefix, and all later changes."""
        self._prefixes.setdefault(session, set()).add(prefix)
        found = {key: value for key, value in self._values.items() if key.startswith(prefix)}
        return [(session, key, value) for key, value in found.items()]

    def end(self, session: Hashable) -> list[Change]:
        """End a session: delete the keys that it owns."""
        self._prefixes.pop(session, None)
        owned = [key for key, owner in self._owners.items() if owner == session]
        return [change for key in owned for change in self.set(session, key, None)]


class StoreServer:
    """Serves a `Store` in a thread, from `__init__` to `close`.

    Args:
        listener: a listening socket, which this object will close.
        secret: the `Secret`, which each client has to prove.
        fork_lock: a lock that the thread holds while it runs Python code other than waiting. A
            process that holds it can fork safely.
    """

    def __init__(self, listener: socket.socket, secret: Secret, fork_lock: threading.Lock):
        listener.setblocking(False)
        self._listener, self._secret, self._lock = listener, secret, fork_lock
        self._store = Store()
        self._channels: list[Channel] = []
        self._closing_at = float("inf")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port, after clients had two seconds to read the last changes and disconnect."""
        self._closing_at = time.monotonic() + _SECONDS_TO_CLOSE
        self._thread.join()

    def _serve(self):
        try:
            self._serve_until_closing()
        finally:
            with self._lock:
                for channel in self._channels:
                    channel.close()
                self._listener.close()

    def _serve_until_closing(self):
        while time.monotonic() < self._closing_at:
            if self._closing_at < float("inf") and not self._channels:
                return
            sockets = [self._listener, *(each.socket for each in self._channels)]
            json_lines.wait(sockets, _POLL_SECONDS)
            with self._lock:
                self._accept()
                for channel in list(self._channels):
                    self._handle_messages(channel)
                self._drop_silent(time.monotonic())

    def _accept(self):
        try:
            while True:
                connection, _ = self._listener.accept()
                self._channels.append(Channel(connection, self._secret, is_server=True))
        except BlockingIOError:  # no more callers
            pass
        except OSError:  # no free file descriptor
            time.sleep(_POLL_SECONDS)
        unauthenticated = [each for each in self._channels if not each.is_authenticated]
        for channel in unauthenticated[:-_MOST_UNAUTHENTICATED]:
            channel.is_open = False

    def _handle_messages(self, channel):
        try:
            for message in channel.receive():
                self._deliver(self._apply(channel, message))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            channel.is_open = False  # an authenticated client has sent an invalid message
        channel.flush()

    def _apply(self, channel, message):
        if message["op"] == "set":
            owned = message["owned"] is True
            return self._store.set(channel, str(message["key"]), message["value"], owned=owned)
        if message["op"] == "watch":
            return self._store.watch(channel, str(message["prefix"]))
        channel.send({"heartbeat": True})
        return []

    def _drop_silent(self, now):
        for channel in list(self._channels):
            is_late = not channel.is_authenticated and (
                now > channel.opened_at + _SECONDS_TO_AUTHENTICATE
            )
            if not channel.is_open or is_late or now > channel.last_received_at + LEASE_SECONDS:
                self._channels.remove(channel)
                channel.close()
                self._deliver(self._store.end(channel))

    def _deliver(self, changes):
        for channel, key, value in changes:
            channel.send({"key": key, "value": value})
