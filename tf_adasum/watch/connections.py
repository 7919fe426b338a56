"""Gossip: small messages between the workers of a cluster, while TensorFlow is busy.

Every worker keeps a connection to worker 0, the hub. One line of JSON travels at a time in either
direction: a member's own status to the hub, and what the hub knows to all members. A connection
that ends tells of a process that has ended, within milliseconds; one that is silent, of a process
that is stopped or cannot be reached.

Standard library only, as `tf_adasum.cluster.rendezvous`. It uses a port of its own, and a token
from the rendezvous keeps strangers out.
"""

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import time

_LONGEST_LINE = 1 << 20
_SECONDS_TO_CONNECT = 5.0
_SECONDS_TO_CLOSE = 1.0


class Line:
    """One connection, over which lines of JSON go; nothing here blocks.

    Attributes:
        begun, heard: when it began, and when something arrived last, by `time.monotonic`.
        is_open: False after the other side has ended.
    """

    def __init__(self, connection):
        connection.setblocking(False)
        self.connection = connection
        self.begun = self.heard = time.monotonic()
        self.is_open = True
        self._incoming, self._outgoing = b"", b""

    def send(self, message):
        """Sends a message; while the other side does not read, nothing more is added."""
        if not self._outgoing:
            self._outgoing = json.dumps(message).encode() + b"\n"
        try:
            sent = self.connection.send(self._outgoing)
            self._outgoing = self._outgoing[sent:]
        except BlockingIOError:
            pass
        except OSError:
            pass  # what it has said before it went away is still to be read

    def receive(self):
        """Returns the messages that have arrived."""
        try:
            while piece := self.connection.recv(1 << 16):
                self._incoming += piece
                if len(self._incoming) > _LONGEST_LINE:
                    break
            self.is_open = False  # the other side has closed, or talks nonsense
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *lines, self._incoming = self._incoming.split(b"\n")
        if lines:
            self.heard = time.monotonic()
        return [message for message in map(_parsed, lines) if message is not None]

    def close(self, deadline=0.0):
        """Closes the connection; until the deadline, not before the other side has read all.

        With something unread in it a connection would be reset, and the last words lost.
        """
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while self.is_open and time.monotonic() < deadline:
                wait([self.connection], deadline - time.monotonic())
                self.receive()
        self.connection.close()


class Hub:
    """Worker 0's end: listens, and knows which line belongs to which rank.

    Args:
        host: the host in worker 0's address; where that is this machine alone nobody else can
            connect.

    Attributes:
        offer: what members need to connect, for the rendezvous.
        lines: dict from ranks to `Line`.
    """

    def __init__(self, host):
        self._listener = socket.create_server((listening_host(host), 0), backlog=128)
        self._listener.setblocking(False)
        self._token = secrets.token_hex(16)
        self._strangers = []
        self.offer = {"port": self._listener.getsockname()[1], "token": self._token}
        self.lines = {}

    def sockets(self):
        """Returns what to wait for."""
        lines = [*self.lines.values(), *self._strangers]
        return [self._listener, *(line.connection for line in lines if line.is_open)]

    def receive(self):
        """Returns pairs of a rank and a message that has arrived from it."""
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                self._strangers.append(Line(self._listener.accept()[0]))
        messages = []
        for line in list(self._strangers):
            introduction, *others = line.receive() or [None]
            if introduction is not None:
                self._strangers.remove(line)
                rank = self._introduced(introduction)
                if rank is None:
                    line.close()
                    continue
                self.lines[rank] = line
                messages += [(rank, message) for message in others]
            elif not line.is_open or time.monotonic() > line.begun + _SECONDS_TO_CONNECT:
                self._strangers.remove(line)
                line.close()
        for rank, line in self.lines.items():
            if line.is_open:
                messages += [(rank, message) for message in line.receive()]
        return messages

    def _introduced(self, message):
        rank, token = message.get("rank"), message.get("token")
        is_text = isinstance(token, str) and token.isascii()
        is_member = is_text and hmac.compare_digest(token, self._token)
        return rank if is_member and type(rank) is int and rank not in self.lines else None

    def send(self, message):
        """Sends a message to all members."""
        for line in self.lines.values():
            if line.is_open:
                line.send(message)

    def close(self):
        """Closes everything."""
        self._listener.close()
        deadline = time.monotonic() + _SECONDS_TO_CLOSE
        for line in [*self.lines.values(), *self._strangers]:
            line.close(deadline)


class Member:
    """The end of any other worker.

    Args:
        host: worker 0's.
        offer: of the `Hub`.
        rank: this worker's.

    Raises:
        OSError: if it cannot connect.
    """

    def __init__(self, host, offer, rank):
        address = (host.strip("[]"), int(offer["port"]))
        self.lines = {0: Line(socket.create_connection(address, _SECONDS_TO_CONNECT))}
        self.send({"rank": rank, "token": offer["token"]})

    def sockets(self):
        """Returns what to wait for."""
        return [line.connection for line in self.lines.values() if line.is_open]

    def receive(self):
        """Returns pairs of the rank 0 and a message that has arrived from it."""
        line = self.lines[0]
        return [(0, message) for message in line.receive()] if line.is_open else []

    def send(self, message):
        """Sends a message to the hub."""
        self.lines[0].send(message)

    def close(self):
        """Closes the connection."""
        self.lines[0].close(time.monotonic() + _SECONDS_TO_CLOSE)


def listening_host(host):
    """Returns the interface to listen on: all of them, unless `host` is this machine alone."""
    return "127.0.0.1" if host == "localhost" or host.startswith("127.") else ""


def wait(sockets, seconds):
    """Waits until something arrives, or the time is over."""
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        selector.select(seconds)


def _parsed(line):
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
