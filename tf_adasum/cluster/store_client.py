"""A session of a `store.StoreServer`. Standard library only."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import addresses, json_lines
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import FILE_NAME, NAME, Secret
from tf_adasum.cluster.store import HEARTBEAT_SECONDS, LEASE_SECONDS
from tf_adasum.errors import see

_POLL_SECONDS = 0.2
_RETRY_SECONDS = 0.5
_SECONDS_BETWEEN_REPORTS = 10.0


class Refused(ConnectionError):
    """The server has a different secret."""


class StoreClient:
    """A session, which sets keys and receives the changes of the keys that it watches.

    Args:
        address: "host:port" of the server.
        secret: the `Secret`.
        fork_lock: as for `StoreServer`.
        deliver: function that receives each key that changes, and its value; None if the key was
            deleted. It runs in a thread that holds `fork_lock`, and must not wait.
        lost: function that is called once, in the same way, if the connection ends before `close`.
        tick: function that is called in the same way after each change, and at least every 0.2 s.
            Defaults to None.
        seconds: for how long to try to connect.
        is_stopped: function that returns whether to stop trying. Defaults to None.
        report: function that receives the reason, every 10 s, while no server answers. Defaults to
            None.

    Raises:
        ConnectionError: if no server answers in time; `Refused` if the secrets differ.
        InterruptedError: if `is_stopped` has returned True.
    """

    def __init__(
        self,
        address: str,
        secret: Secret,
        fork_lock: threading.Lock,
        deliver: Callable[[str, Any], None],
        lost: Callable[[], None],
        tick: Callable[[], None] | None = None,
        *,
        seconds: float,
        is_stopped: Callable[[], bool] | None = None,
        report: Callable[[str], None] | None = None,
    ):
        self._lock, self._deliver, self._lost, self._tick = (
            fork_lock,
            deliver,
            lost,
            tick or (lambda: None),
        )
        self._closing = threading.Event()
        self._channel = _connected(
            address,
            secret,
            time.monotonic() + seconds,
            is_stopped or (lambda: False),
            report or (lambda reason: None),
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def own_host(self) -> str:
        """The address of this machine in the connection."""
        return self._channel.socket.getsockname()[0]

    def set(self, key: str, value: Any, *, owned: bool = False) -> None:
        """Set a key, see `Store.set`. The lock must not be held."""
        with self._lock:
            self.set_in_callback(key, value, owned=owned)

    def set_in_callback(self, key: str, value: Any, *, owned: bool = False) -> None:
        """Set a key from a function that is called with the lock held."""
        self._channel.send({"op": "set", "key": key, "value": value, "owned": owned})

    def watch(self, prefix: str) -> None:
        """Receive the keys with a prefix, and all later changes."""
        with self._lock:
            self._channel.send({"op": "watch", "prefix": prefix})

    def close(self) -> None:
        """End the session."""
        self._closing.set()
        self._thread.join()
        self._channel.close()

    def _follow(self):
        try:
            self._receive_until_end()
        finally:  # even if a function of the caller has raised an error
            if not self._closing.is_set():
                with self._lock:
                    self._lost()

    def _receive_until_end(self):
        heartbeat_at = 0.0
        while not self._closing.is_set() and self._channel.is_open:
            json_lines.wait([self._channel.socket], _POLL_SECONDS)
            with self._lock:
                now = time.monotonic()
                if now > heartbeat_at:
                    heartbeat_at = now + HEARTBEAT_SECONDS
                    self._channel.send({"op": "heartbeat"})
                for message in self._channel.receive():
                    if "key" in message:
                        self._deliver(message["key"], message["value"])
                        self._tick()
                self._channel.flush()
                self._channel.is_open &= now < self._channel.last_received_at + LEASE_SECONDS
                self._tick()


def _connected(address, secret, deadline, is_stopped, report):
    """Return an authenticated channel."""
    reason, report_at = "", time.monotonic() + _SECONDS_BETWEEN_REPORTS
    while time.monotonic() < deadline:
        if is_stopped():
            raise InterruptedError
        if time.monotonic() > report_at:
            report_at += _SECONDS_BETWEEN_REPORTS
            report(reason)
        channel = None
        try:
            connection = socket.create_connection(addresses.split(address), timeout=LEASE_SECONDS)
            channel = Channel(connection, secret, is_server=False)
        except OSError as error:
            reason = error.strerror or str(error)
        until = min(deadline, time.monotonic() + LEASE_SECONDS)
        while channel and channel.is_open and time.monotonic() < until and not is_stopped():
            json_lines.wait([channel.socket], _POLL_SECONDS)
            channel.receive()
            if channel.is_authenticated:
                return channel
        if channel:
            reason = "another program answers there"
            channel.close()
            if channel.is_refused:
                raise Refused(
                    "All launchers must be started with the same secret, in the variable "
                    f"{NAME} or in a file that {FILE_NAME} names. Received: a secret that differs "
                    f"from the secret of the launcher at {address} {see('TFA-207')}"
                )
        time.sleep(_RETRY_SECONDS)
    if is_stopped():
        raise InterruptedError
    raise ConnectionError(
        f"The launcher at {address} did not start, or cannot be reached ({reason}) {see('TFA-201')}"
    )
