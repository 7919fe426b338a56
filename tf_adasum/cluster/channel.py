"""Authenticated messages over one connection, in both directions. Standard library only.

    client                                  server
    rank, if it is given         ──▶
                                 ◀──        nonce
    nonce, proof over nonces     ──▶
                                 ◀──        proof over nonces, or "refused"
    text, proof                  ◀─▶        text, proof

Each line is a JSON object. A proof is made with the `Secret`, and covers the role of its sender and
both nonces. The proof of a message also covers its number, which both ends count, and the hash of
its text. So a message cannot be changed, repeated, left out or used in another connection. The
connection is not encrypted.

The line with the client's rank is not authenticated. So the rank may only be used in error
messages.
"""

import contextlib
import functools
import hashlib
import json
import math
import re
import secrets
import select
import socket
import time
from typing import Any

from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.timeouts import POLL_SECONDS

LONGEST_MESSAGE = 1 << 20  # bytes, as a line
_LONGEST_HANDSHAKE = 1 << 9  # bytes of a line before the other end has proved the secret
_MOST_UNSENT = 1 << 22  # bytes; a peer that reads so slowly is disconnected
_NONCE = re.compile(r"[0-9a-f]{32}")


class Channel:
    """One end of a connection. Of its methods, only `close` can block, until its deadline.

    Args:
        connection: a connected socket, which this object will close.
        secret: the `Secret`.
        is_server: whether this end has accepted the connection.
        rank: the rank of the client, which it sends before it authenticates. Defaults to None.

    Attributes:
        socket: the socket, on which the caller can wait for data.
        is_open: False after either end has closed the connection, after an invalid message, or when
            more than 4 MiB wait to be sent because the other end reads too slowly.
        is_authenticated: whether the other end has proved that it has the secret.
        is_refused: whether authentication failed: the other end has sent a wrong proof or, to a
            client, "refused".
        claimed_rank: on the server, the rank that the client claims to have; None if it sent none.
        last_received_at: when the last message arrived, by `time.monotonic`; at first, when the
            connection began.
    """

    def __init__(
        self, connection: socket.socket, secret: Secret, *, is_server: bool, rank: int | None = None
    ):
        connection.setblocking(False)
        self.socket, self._secret = connection, secret
        self._longest_line = _LONGEST_HANDSHAKE
        self._incoming, self._has_ended = b"", False
        self._own, self._other = ("server", "client") if is_server else ("client", "server")
        self._nonces: list[str] = []  # of the server and of the client
        self._sent = self._received = 0
        self._unsent = b""
        self._newest: str | None = None  # a text that `send_newest` has not sent yet
        self.last_received_at = time.monotonic()
        self.is_open, self.is_authenticated = True, False
        self.is_refused = False
        self.claimed_rank: int | None = None
        if rank is not None:
            self._write({"rank": rank})
        if is_server:
            self._nonces = [secrets.token_hex(16)]
            self._write({"nonce": self._nonces[0]})

    def send(self, message: Any) -> None:
        """Send a message (JSON types); data that does not fit into the socket is sent later."""
        self.send_text(json.dumps(message))

    def send_newest(self, text: str) -> None:
        """Send a message, as JSON, after all earlier data; until then, a newer one replaces it."""
        self._newest = text
        self.flush()

    def flush(self) -> bool:
        """Send what did not fit into the socket; return whether there is still some."""
        if self._unsent:
            try:
                sent = self.socket.send(self._unsent)
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = len(self._unsent)  # nobody receives it; arrived data can still be read
            self._unsent = self._unsent[sent:]
            self.is_open &= len(self._unsent) <= _MOST_UNSENT
        if not self._unsent and self._newest is not None:
            text, self._newest = self._newest, None
            self.send_text(text)
        return bool(self._unsent)

    def send_text(self, text: str) -> None:
        """Send a message, as JSON."""
        digest, quoted = _digest_and_quoted(text)
        proof = self._secret.proof(self._own, *self._nonces, self._sent, digest)
        self._unsent += b'{"proof": "%s", "text": %s}\n' % (proof.encode(), quoted)
        self._sent += 1
        self.flush()

    def receive(self) -> list[Any]:
        """Return the messages that have arrived; a wrong line closes the channel."""
        received = []
        try:
            for line in map(json.loads, self._lines()):
                if self.is_authenticated:
                    received.append(self._message(line))
                else:
                    self._authenticate(line)
        # Deeply nested JSON exhausts the parser.
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.is_open = False
        self.is_open &= not self._has_ended
        if received:
            self.last_received_at = time.monotonic()
        return received

    def _lines(self) -> list[bytes]:
        """Return the lines that have arrived.

        If very much data has arrived, at most the longest line and one byte of it are processed,
        and the rest is left for the next call. After a longer line, the connection has ended.
        """
        try:
            while (room := self._longest_line + 1 - len(self._incoming)) > 0:
                piece = self.socket.recv(min(room, 1 << 16))
                if not piece:
                    self._has_ended = True
                    break
                self._incoming += piece
        except BlockingIOError:
            pass
        except OSError:
            self._has_ended = True
        *lines, self._incoming = self._incoming.split(b"\n")
        if len(self._incoming) > self._longest_line:
            self._has_ended, self._incoming = True, b""
        return lines

    def _message(self, line: dict[str, Any]) -> Any:
        """Return the message in a line."""
        digest = hashlib.sha256(line["text"].encode(errors="surrogatepass")).hexdigest()
        of = (self._other, *self._nonces, self._received, digest)
        if not self._secret.proves(line["proof"], *of):
            raise ValueError("The line is not the next message of the other end.")
        self._received += 1
        return json.loads(line["text"])

    def close(self, deadline: float = 0.0) -> None:
        """Close the connection when the other end has read all data, or at the deadline.

        A connection with unread data would be reset, and its last messages would be lost.

        Args:
            deadline: a time, by `time.monotonic`. Defaults to 0, which closes at once.
        """
        self.flush()
        while self._unsent and not self._has_ended and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self.flush()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while not self._has_ended and time.monotonic() < deadline:
                wait(self.socket, deadline - time.monotonic())
                self._lines()
        self.socket.close()
        self.is_open = False

    def _authenticate(self, line: dict[str, Any]) -> None:
        """Process a line of the handshake; raise an error if the line is wrong."""
        is_server = self._own == "server"
        if is_server and self.claimed_rank is None and type(line.get("rank")) is int:
            self.claimed_rank = line["rank"]  # followed by the line with the nonce
            return
        if len(self._nonces) < 2:
            if not _NONCE.fullmatch(line["nonce"]):
                raise ValueError("The line has no nonce.")
            self._nonces.append(line["nonce"])
            if not is_server:
                self._nonces.append(secrets.token_hex(16))
                proof = self._secret.proof("client", *self._nonces)
                self._write({"nonce": self._nonces[1], "proof": proof})
                return
        self.is_refused = not self._secret.proves(line.get("proof"), self._other, *self._nonces)
        if is_server:
            own = self._secret.proof("server", *self._nonces)
            self._write({"refused": True} if self.is_refused else {"proof": own})
        if self.is_refused:
            raise ValueError("The other end has another secret.")
        self.is_authenticated, self._longest_line = True, LONGEST_MESSAGE

    def _write(self, message: dict[str, Any]) -> None:
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()


@functools.lru_cache(maxsize=4)  # worker 0 sends one text to all
def _digest_and_quoted(text: str) -> tuple[str, bytes]:
    """Return the hash of a text, and the text as a JSON string."""
    return hashlib.sha256(text.encode()).hexdigest(), json.dumps(text).encode()


def wait(connection: socket.socket, seconds: float) -> None:
    """Wait until data arrives, or the time is over.

    This function supports file descriptors larger than 1023. It opens no file descriptor, because
    the process may have reached its limit.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.poll(math.ceil(max(0.0, seconds) * 1000))
