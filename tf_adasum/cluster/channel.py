"""Authenticated messages over one connection, in both directions. Standard library only.

    client                                  server
                                 ◀──        nonce
    nonce, proof over nonces     ──▶
                                 ◀──        proof over nonces, or "refused"
    number, text, proof          ◀─▶        number, text, proof

Each line is a JSON object. A proof is made with the `Secret`, and covers the role of its sender,
both nonces, and the number of the message. So a message cannot be repeated, left out or used in
another connection. The connection is not encrypted.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import time
from typing import Any

from tf_adasum.cluster import json_lines
from tf_adasum.cluster.secret import Secret

LONGEST_MESSAGE = 1 << 16  # bytes, as a line
_LONGEST_HANDSHAKE = 1 << 9  # bytes of a line before the other end has proved the secret
_MOST_UNSENT = 1 << 22  # bytes; a peer that reads so slowly is disconnected
_NONCE = re.compile(r"[0-9a-f]{32}")


class Channel:
    """One end of a connection. No method blocks.

    Args:
        connection: a connected socket, which this object will close.
        secret: the `Secret`.
        is_server: whether this end has accepted the connection.
        longest_message: the largest number of bytes in a line. Defaults to `LONGEST_MESSAGE`.

    Attributes:
        is_open: False after either end has closed the connection, the other end has sent something
            wrong, or the other end has not read 4 MiB of data.
        is_authenticated: whether the other end has proved the secret.
        is_refused: whether the secrets of the two ends differ.
        opened_at: when the connection began, by `time.monotonic`.
        last_received_at: when the last message arrived; at first, the same as `opened_at`.
    """

    def __init__(
        self,
        connection: socket.socket,
        secret: Secret,
        *,
        is_server: bool,
        longest_message: int = LONGEST_MESSAGE,
    ):
        self._connection = json_lines.Connection(connection, _LONGEST_HANDSHAKE)
        self._secret, self._longest_message = secret, longest_message
        self._own, self._other = ("server", "client") if is_server else ("client", "server")
        self._nonces: list[str] = [secrets.token_hex(16)] if is_server else []
        self._sent = self._received = 0
        self._unsent = b""
        self.opened_at = self.last_received_at = time.monotonic()
        self.is_open, self.is_authenticated, self.is_refused = True, False, False
        if is_server:
            self._write({"nonce": self._nonces[0]})

    @property
    def socket(self) -> socket.socket:
        """The socket, on which the caller can wait for data."""
        return self._connection.socket

    @property
    def has_unsent(self) -> bool:
        """Whether the other end reads so slowly that some data does not fit into the socket."""
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        """Send a message (JSON types); data that does not fit into the socket is sent later."""
        text = json.dumps(message)
        proof = self._secret.proof(self._own, *self._nonces, self._sent, text)
        self._write({"n": self._sent, "text": text, "proof": proof})
        self._sent += 1

    def flush(self) -> None:
        """Send what did not fit into the socket."""
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._unsent)  # nobody receives it; data that has arrived can still be read
        self._unsent = self._unsent[sent:]
        self.is_open &= len(self._unsent) <= _MOST_UNSENT

    def receive(self) -> list[Any]:
        """Return the messages that have arrived; a wrong message closes the channel."""
        received = []
        for line in self._connection.receive():
            if self.is_authenticated:
                text, proof = line.get("text"), line.get("proof")
                of = (self._other, *self._nonces, self._received, text)
                if not isinstance(text, str) or not self._secret.proves(proof, *of):
                    self.is_open = False
                    break
                self._received += 1
                try:
                    received.append(json.loads(text))
                except (ValueError, RecursionError):  # deeply nested JSON exhausts the parser
                    self.is_open = False
                    break
            elif not self._authenticate(line):
                self.is_open = False
                break
        self.is_open &= self._connection.is_open
        if received:
            self.last_received_at = time.monotonic()
        return received

    def close(self, deadline: float = 0.0) -> None:
        """Close the connection when the other end has read all data, or at the deadline.

        Args:
            deadline: a time, by `time.monotonic`. Defaults to 0, which closes at once.
        """
        self.flush()
        self._connection.close(deadline)
        self.is_open = False

    def _authenticate(self, line: dict[str, Any]) -> bool:
        """Take in a line of the handshake; return False if it is wrong."""
        nonce, proof = line.get("nonce"), line.get("proof")
        is_nonce = isinstance(nonce, str) and _NONCE.fullmatch(nonce) is not None
        if self._own == "client" and not self._nonces:
            if is_nonce:
                self._nonces = [nonce, secrets.token_hex(16)]
                proof = self._secret.proof("client", *self._nonces)
                self._write({"nonce": self._nonces[1], "proof": proof})
            return is_nonce
        if self._own == "server":
            if not is_nonce:
                return False
            self._nonces.append(nonce)
        self.is_authenticated = self._secret.proves(proof, self._other, *self._nonces)
        self.is_refused = not self.is_authenticated
        if self.is_authenticated:
            self._connection.longest_line = self._longest_message
        if self._own == "server":
            own = self._secret.proof("server", *self._nonces)
            self._write({"refused": True} if self.is_refused else {"proof": own})
        return self.is_authenticated

    def _write(self, message):
        self._unsent += json_lines.encode(message)
        self.flush()
