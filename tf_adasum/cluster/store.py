"""The store of a cluster: worker 0 serves it, from the start of the workers to their end.

A client is a session with one key. Only the `Leader`, which runs on the server, reads these keys.
The leader publishes other keys, which all sessions receive in the same order:

    X                set by a session. Deleted when its connection ends, or, as long as there is a
                     `lease`, when the session has been silent for this time. Such a session begins
                     anew if it sends anything
    refused/X        published for the session with the key X only
    any other key    published for all; a session that begins later receives it, too

At the start, the server listens at the coordinator's address, or at worker 0's own port, which
`hand_over` frees for TensorFlow. The connections stay, nobody can connect any more, and from then
on the failure detector decides about silent workers. Standard library only.
"""

import abc
import contextlib
import dataclasses
import json
import math
import select
import socket
import threading
import time
from typing import Any

from tf_adasum.cluster import own_address
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.timeouts import (
    ANSWER_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    POLL_SECONDS,
)

REFUSED_KEYS = "refused/"
STATUSES = "statuses"  # a key of which only the newest value is sent

_LONGEST_KEY = 200  # characters
# The limit for clients that have not set a key, to which `clients` is added.
_MOST_UNAUTHENTICATED = 32
_OTHER_SESSIONS = 64  # for example of workers that restart
_MOST_CALLERS = 64  # that are accepted at a time
# After the hand over, messages of this many seconds (for few sessions, or for each) are handled
# together, because worker 0 has little time.
_PAUSE, _PAUSE_OF_A_SESSION = 0.02, 0.0001


class Leader(abc.ABC):
    """Runs on the server, reads the keys of all sessions, and publishes other keys.

    Its methods run with `fork_lock` held.
    """

    @abc.abstractmethod
    def changed(self, key: str, value: Any, ends: tuple[str, str]) -> None:
        """Note that a session has set or lost its key.

        Args:
            key: the key.
            value: the new value; None if the key was deleted.
            ends: the IP addresses of the server and of the client in the client's connection.
        """

    def authentication_failed(self, rank: int) -> None:  # noqa: B027 - optional
        """Note the rank that a client without the secret claims to have."""

    def silent(self, key: str, ends: tuple[str, str]) -> None:
        """Note that a key was deleted because its session is silent; see `changed`.

        When the connection of this session ends, `changed` follows.
        """
        self.changed(key, None, ends)

    @abc.abstractmethod
    def decide(self, now: float) -> dict[str, Any]:
        """Return new values of keys. This method is called after each change, and every 0.1 s."""


@dataclasses.dataclass(eq=False)
class _Session:
    channel: Channel
    ends: tuple[str, str]
    key: str = ""


class StoreServer:
    """Serves the store in a thread, from `__init__` to `close`.

    Args:
        listener: a listening socket, which this object will close.
        secret: the `Secret`, which each client has to prove.
        fork_lock: a lock that the thread holds while it runs Python code other than waiting. A
            process that holds it can fork safely.
        leader: the `Leader`.
        clients: the number of clients that may connect at the same time. It is added to the limit
            for unauthenticated clients. Sessions beyond twice this number and 64 are ended.
            Defaults to 0.

    Attributes:
        lease: seconds of silence after which a session ends; infinite after the hand over.
        owners: dict from keys to the `Channel` of their session.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: Secret,
        fork_lock: threading.Lock,
        leader: Leader,
        clients: int = 0,
    ):
        self._listener, self._secret, self._lock, self._leader = listener, secret, fork_lock, leader
        self._most_unauthenticated = _MOST_UNAUTHENTICATED + clients
        self._most_members = 2 * clients + _OTHER_SESSIONS
        self.lease, self._pause = LEASE_SECONDS, 0.0
        self.owners: dict[str, Channel] = {}
        self._published: dict[str, str] = {}  # the messages with keys and values
        self._sessions: dict[int, _Session] = {}  # by file descriptor, the oldest first
        self._has_unsent = False
        self._look_at = 0.0  # when to look at all sessions
        self._closing_at = math.inf
        self._is_handing_over = False
        self._wakes, self._wake = socket.socketpair()
        self._poll = select.poll()  # opens no file descriptor, and supports those above 1023
        self._poll.register(self._wakes, select.POLLIN)
        listener.setblocking(False)  # a caller may disconnect before it is accepted
        self._poll.register(listener, select.POLLIN)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="tf_adasum store")
        self._thread.start()

    def wake(self) -> None:
        """Let the leader decide at once."""
        with contextlib.suppress(OSError):  # this object is closed
            self._wake.send(b"\0")

    def hand_over(self) -> None:
        """Release the port, and keep all sessions without a lease."""
        self._is_handing_over = True
        while self._is_handing_over and self._thread.is_alive():
            self.wake()
            time.sleep(POLL_SECONDS / 10)

    def close(self, seconds: float = ANSWER_SECONDS) -> None:
        """Close the port, after clients had time to read the last changes and disconnect.

        Args:
            seconds: for how long to wait for clients. Defaults to 2.
        """
        self._closing_at = time.monotonic() + seconds
        self.wake()
        self._thread.join()

    def _release_port(self) -> None:
        # Here, because a socket that another thread waits for is not closed at once.
        self._ignore_callers()
        self._listener.close()
        for session in [each for each in self._sessions.values() if not each.key]:
            self._end(session)
        self.lease = math.inf
        self._pause = max(_PAUSE, _PAUSE_OF_A_SESSION * len(self._sessions))
        self._is_handing_over = False

    def _serve(self) -> None:
        try:
            while time.monotonic() < self._closing_at:
                if self._closing_at < math.inf and not self._sessions:
                    break
                self._serve_once()
            with self._lock:
                self._publish_news()
        finally:
            with self._lock:
                deadline = time.monotonic() + (1.0 if self.lease == math.inf else 0.0)
                for session in self._sessions.values():
                    session.channel.close(deadline)
                for each in (self._listener, self._wakes, self._wake):
                    each.close()

    def _serve_once(self) -> None:
        now = time.monotonic()  # before the wait, in which this process may be suspended
        ready = self._ready(POLL_SECONDS if self._look_at and not self._has_unsent else 0.01)
        if self._pause and ready and self._wakes.fileno() not in ready:
            time.sleep(self._pause)
            ready = self._ready(0.0)
        with self._lock:
            if self._wakes.fileno() in ready:
                self._wakes.recv(1 << 12)
            if self._is_handing_over:
                self._release_port()
            elif self._listener.fileno() in ready:
                self._accept()
            for number in ready:
                if session := self._sessions.get(number):
                    self._handle_messages(session)
            self._publish_news()
            channels = [each.channel for each in self._sessions.values()]
            unsent = [each.flush() for each in channels if each.is_open]
            self._has_unsent = any(unsent)
            if now >= self._look_at:
                self._look_at = now + (HEARTBEAT_SECONDS if self._pause else POLL_SECONDS)
                self._drop_silent(now)

    def _ready(self, seconds: float) -> list[int]:
        return [number for number, _ in self._poll.poll(math.ceil(1000 * seconds))]

    def _accept(self) -> None:
        try:
            for _ in range(_MOST_CALLERS):
                connection, peer = self._listener.accept()
                ends = own_address.of_end(connection.getsockname()), own_address.of_end(peer)
                channel = Channel(connection, self._secret, is_server=True)
                self._sessions[connection.fileno()] = _Session(channel, ends)
                self._poll.register(connection, select.POLLIN)
        except BlockingIOError:  # no more callers
            pass
        except OSError:  # no free file descriptor, or the caller has disconnected
            self._ignore_callers()
        others = [each for each in self._sessions.values() if not each.key]
        for session in others[: -self._most_unauthenticated]:
            self._end(session)

    def _ignore_callers(self) -> None:
        """Accept nobody until the next call of `_drop_silent`."""
        with contextlib.suppress(KeyError):
            self._poll.unregister(self._listener)

    def _handle_messages(self, session: _Session) -> None:
        channel = session.channel
        try:
            for message in channel.receive():
                self._apply(session, message)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            channel.is_open = False  # an authenticated client has sent an invalid message
        if channel.is_refused and channel.claimed_rank is not None:
            self._leader.authentication_failed(channel.claimed_rank)
        if not channel.is_open:
            self._end(session)

    def _apply(self, session: _Session, message: dict[str, Any]) -> None:
        if session.key and self.owners.get(session.key) is not session.channel:
            raise ValueError("The key was deleted, because the session was silent.")
        if message["op"] != "set":
            session.channel.send({"heartbeat": True})
            return
        key, is_first = str(message["key"]), not session.key
        if (session.key or key) != key or not 0 < len(key) <= _LONGEST_KEY:
            raise ValueError("A session has one key.")
        if self.owners.setdefault(key, session.channel) is not session.channel:
            raise ValueError("Another session has this key.")
        session.key = key
        self._leader.changed(key, message["value"], session.ends)
        if is_first:
            for each, text in self._published.items():
                self._send(session, each, text)

    def _publish_news(self) -> None:
        for key, value in self._leader.decide(time.monotonic()).items():
            text = self._published[key] = json.dumps({"key": key, "value": value})
            if value is None:
                del self._published[key]  # and tell those who know it
            for session in self._sessions.values():
                self._send(session, key, text)

    def _send(self, session: _Session, key: str, text: str) -> None:
        is_private = key.startswith(REFUSED_KEYS)
        has_key = self.owners.get(session.key) is session.channel  # and has not been silent
        if not has_key or (is_private and session.key != key.removeprefix(REFUSED_KEYS)):
            return
        send = session.channel.send_newest if key == STATUSES else session.channel.send_text
        send(text)

    def _drop_silent(self, now: float) -> None:
        """End the sessions that are closed, silent or too many, and accept others again."""
        if self.lease < math.inf:
            self._poll.register(self._listener, select.POLLIN)
        members = [each for each in self._sessions.values() if each.key]
        for session in members[self._most_members :]:
            self._end(session)
        for session in list(self._sessions.values()):
            channel = session.channel
            is_silent = channel.is_open and now > channel.last_received_at + self.lease
            if is_silent and session.key:  # but its end will show that its process has ended
                if self.owners.get(session.key) is channel:
                    del self.owners[session.key]
                    self._leader.silent(session.key, session.ends)
            elif not channel.is_open or is_silent:
                self._end(session)

    def _end(self, session: _Session) -> None:
        number = session.channel.socket.fileno()
        self._poll.unregister(number)
        del self._sessions[number]
        session.channel.close()
        if session.key and self.owners.get(session.key, session.channel) is session.channel:
            self.owners.pop(session.key, None)
            self._leader.changed(session.key, None, session.ends)
