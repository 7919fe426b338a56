"""The handshake, in which two tasks exchange a `Hello` over one connection.

    caller                                  answerer
    rank, nonce                  ──▶
                                 ◀──        rank, nonce, proof of (ranks, nonces)
    hello, proof                 ──▶
                                 ◀──        hello, proof
    "received"                   ──▶

Each line is a JSON object. The first line of each task is its greeting. A proof is made with the
`Secret`, and covers both ranks and both nonces. The proof of a `Hello` also covers the `Hello` and
the role of its sender. So a proof is not valid in another connection, or for another `Hello`. A
task sends its `Hello` only after the other task has proved that it has the secret. The connection
is not encrypted. Standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import socket
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster import json_lines
from tf_adasum.cluster.secret import Secret

# Long, because many tasks may start on one busy machine. A caller also counts this task as
# connected before the caller sends its confirmation, "received". If this task did not wait for a
# late confirmation, the caller could end the rendezvous, and this task would wait for the caller
# forever.
_SECONDS_FOR_AN_ANSWER = 10.0

_LONGEST_GREETING = 1 << 10  # bytes; a greeting takes 150
_LONGEST_FAILURE, _LONGEST_DIFFERENCE = 200, 4000  # characters
_NONCE = re.compile(r"[0-9a-f]{32}")


class ProtocolError(Exception):
    """The program at the other end of a connection is not a task of a cluster."""


class AuthenticationError(Exception):
    """A program claims to be a task, but does not prove that it knows the secret.

    Attributes:
        rank: the rank that the program claims to have.
        has_secret: whether the program claims to have a secret.
    """

    def __init__(self, rank: int, has_secret: bool):
        super().__init__()
        self.rank, self.has_secret = rank, has_secret


@dataclasses.dataclass(frozen=True)
class Hello:
    """The data that a task sends about itself.

    Attributes:
        rank: the rank of the task.
        run: a random name for this start of the task; a restarted process has another name.
        settings: the settings that must match on all tasks.
        payload: other data for the other tasks.
        is_connected_to_all: whether the task is connected to all other tasks.
        all_are_connected: whether the task knows that all tasks are connected to all other tasks.
        failures: for the rank of a task, a dict from the ranks that the task cannot reach to the
            reasons. It has the sender's own failures, and the failures that other tasks have sent.
        difference: the error that task 0 sends if settings of tasks differ; "" if there is none.
        lost: an error about a task that has ended during the rendezvous; "" if none is known.
    """

    rank: int
    run: str
    settings: dict[str, Any]
    payload: dict[str, Any]
    is_connected_to_all: bool = False
    all_are_connected: bool = False
    failures: dict[int, dict[int, str]] = dataclasses.field(default_factory=dict)
    difference: str = ""
    lost: str = ""

    @classmethod
    def parsed(cls, text: str, rank: int) -> Hello:
        """Return the `Hello` in a text; raise `ProtocolError` if the text is not valid."""
        message = json_lines.decode(text.encode(errors="surrogatepass")) or {}
        run, settings, payload = (message.get(name) for name in ("run", "settings", "payload"))
        is_task = type(message.get("rank")) is int and message["rank"] == rank
        if not (
            is_task
            and isinstance(run, str)
            and isinstance(settings, dict)
            and isinstance(payload, dict)
        ):
            raise ProtocolError
        return cls(
            rank,
            run,
            settings,
            payload,
            message.get("is_connected_to_all") is True,
            message.get("all_are_connected") is True,
            {
                who: {
                    whom: printable(why, _LONGEST_FAILURE)
                    for whom, why in _by_rank(failures)
                    if isinstance(why, str)
                }
                for who, failures in _by_rank(message.get("failures"))
            },
            printable(message.get("difference"), _LONGEST_DIFFERENCE),
            printable(message.get("lost"), _LONGEST_DIFFERENCE),
        )


def _by_rank(message):
    """Return the items of a dict whose keys are ranks; [] if `message` is not a dict."""
    pairs = message.items() if isinstance(message, dict) else ()
    return [(int(rank), value) for rank, value in pairs if re.fullmatch("[0-9]{1,9}", rank)]


def printable(text: Any, longest: int) -> str:
    """Return a text of another task in a form that can be printed; "" if it is not a text."""
    shown = text[:longest] if isinstance(text, str) else ""
    return "".join(each if each.isprintable() else "?" for each in shown)


def call(connection: socket.socket, ours: Hello, secret: Secret) -> Hello:
    """Exchange `Hello` messages with the task that answers, and return its message.

    Args:
        connection: a connected socket.
        ours: this task's `Hello`.
        secret: the `Secret`.

    Raises:
        `ProtocolError`, `AuthenticationError`: see these classes.
        OSError: if the connection breaks; TimeoutError: if no answer comes.
        EOFError: if the other side closes the connection before it has sent data.
    """
    nonce = secrets.token_hex(16)
    _send(connection, {"rank": ours.rank, "nonce": nonce, "secret": bool(secret.key)})
    greeting = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER, _LONGEST_GREETING) or {}
    rank, their_nonce = _greeted(greeting)
    connection_id = [ours.rank, rank, nonce, their_nonce]
    if not secret.proves(greeting.get("proof"), "greeting", *connection_id):
        has_secret = greeting.get("secret") is True
        if "proof" not in greeting or not (secret.key or has_secret):
            raise ProtocolError
        raise AuthenticationError(rank, has_secret)
    _send_hello(connection, ours, secret, ["caller", *connection_id])
    theirs = _received_hello(connection, rank, secret, ["answerer", *connection_id])
    _send(connection, {"received": True})
    return theirs


def answer(
    connection: socket.socket,
    rank: int,
    reply: Callable[[Hello], Hello],
    secret: Secret,
) -> tuple[Hello, Hello]:
    """Answer a task that has connected to this task: the two tasks exchange `Hello` messages.

    Args:
        connection: the connected socket.
        rank: the rank of this task.
        reply: function that returns this task's `Hello` for the other task's `Hello`, within a few
            seconds.
        secret: the `Secret`.

    Returns:
        The other task's `Hello`, and this task's `Hello`.

    Raises:
        The errors of `call`.
    """
    greeting = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER, _LONGEST_GREETING) or {}
    other, their_nonce = _greeted(greeting)
    nonce = secrets.token_hex(16)
    connection_id = [other, rank, their_nonce, nonce]
    proof = secret.proof("greeting", *connection_id)
    _send(connection, {"rank": rank, "nonce": nonce, "secret": bool(secret.key), "proof": proof})
    try:
        theirs = _received_hello(connection, other, secret, ["caller", *connection_id])
    except EOFError:  # the caller has not accepted the proof
        raise AuthenticationError(other, greeting.get("secret") is True) from None
    ours = reply(theirs)
    _send_hello(connection, ours, secret, ["answerer", *connection_id])
    last = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER, _LONGEST_GREETING) or {}
    if last.get("received") is not True:
        raise ProtocolError
    return theirs, ours


def _greeted(greeting):
    """Return the rank and the nonce of a greeting."""
    rank, nonce = greeting.get("rank"), greeting.get("nonce")
    if type(rank) is not int or not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ProtocolError
    return rank, nonce


def _send_hello(connection, ours, secret, who):
    text = json.dumps(dataclasses.asdict(ours))
    _send(connection, {"hello": text, "proof": secret.proof(*who, text)})


def _received_hello(connection, rank, secret, who):
    message = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER) or {}
    text = message.get("hello")
    if not isinstance(text, str) or not secret.proves(message.get("proof"), *who, text):
        raise ProtocolError
    return Hello.parsed(text, rank)


def _send(connection, message):
    connection.settimeout(_SECONDS_FOR_AN_ANSWER)
    connection.sendall(json_lines.encode(message))
