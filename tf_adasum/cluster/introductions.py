"""The handshake, in which two tasks introduce themselves to each other over one connection.

    caller                                  answerer
    rank, nonce                  ──▶
                                 ◀──        rank, nonce, proof of (ranks, nonces)
    introduction, proof          ──▶
                                 ◀──        introduction, proof
    "heard"                      ──▶

Each line is a JSON object. A proof is made with the `Secret`, and covers the role of its sender,
both ranks, both nonces and the introduction. So a proof is not valid in another connection, or for
another introduction. A task sends its introduction only after the other task has proved that it
knows the secret. The connection is not encrypted. Standard library only.
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

# Long, because many tasks may start on one busy machine. Also, a caller counts this task as
# connected before it sends its confirmation, "heard". If this task did not wait for a late
# confirmation, the caller could end the rendezvous, and this task would wait for it in vain.
_SECONDS_FOR_AN_ANSWER = 10.0

_LONGEST_GREETING = 1 << 10  # bytes; a greeting takes 150
_LONGEST_TROUBLE, _LONGEST_DIFFERENCE = 200, 4000  # characters
_NONCE = re.compile(r"[0-9a-f]{32}")


class Stranger(Exception):
    """The program at the other end of a connection is not a task of a cluster."""


class Distrusted(Exception):
    """A program claims to be a task, but does not prove that it knows the secret.

    Attributes:
        rank: the rank that the program claims to have.
        has_secret: whether the program claims to have a secret.
    """

    def __init__(self, rank: int, has_secret: bool):
        super().__init__()
        self.rank, self.has_secret = rank, has_secret


@dataclasses.dataclass(frozen=True)
class Introduction:
    """The data that a task sends about itself.

    Attributes:
        rank: the rank of the task.
        run: a random name for this start of the task; a restarted process has another name.
        terms: the settings that must match on all tasks.
        offer: other data for the other tasks.
        has_met_all: whether the task is connected to all other tasks.
        all_have: whether the task knows that all tasks are connected to all other tasks.
        troubles: for the rank of a task, a dict from the ranks that the task cannot reach to the
            reasons. It has the sender's own troubles, and the troubles that other tasks have sent.
        difference: the error that task 0 sends if settings of tasks differ; "" if there is none.
        lost: an error about a task that has ended during the rendezvous; "" if none is known.
    """

    rank: int
    run: str
    terms: dict[str, Any]
    offer: dict[str, Any]
    has_met_all: bool = False
    all_have: bool = False
    troubles: dict[int, dict[int, str]] = dataclasses.field(default_factory=dict)
    difference: str = ""
    lost: str = ""

    @classmethod
    def parsed(cls, text: str, rank: int) -> Introduction:
        """Return the introduction in a text; raise `Stranger` if the text is not valid."""
        message = json_lines.decode(text.encode(errors="surrogatepass")) or {}
        run, terms, offer = (message.get(name) for name in ("run", "terms", "offer"))
        is_task = type(message.get("rank")) is int and message["rank"] == rank
        if not (
            is_task and isinstance(run, str) and isinstance(terms, dict) and isinstance(offer, dict)
        ):
            raise Stranger
        return cls(
            rank,
            run,
            terms,
            offer,
            message.get("has_met_all") is True,
            message.get("all_have") is True,
            {
                who: {
                    whom: printable(why, _LONGEST_TROUBLE)
                    for whom, why in _by_rank(troubles)
                    if isinstance(why, str)
                }
                for who, troubles in _by_rank(message.get("troubles"))
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


def call(connection: socket.socket, ours: Introduction, secret: Secret) -> Introduction:
    """Exchange introductions with the task that answers, and return its introduction.

    Args:
        connection: a connected socket.
        ours: this task's introduction.
        secret: the `Secret`.

    Raises:
        `Stranger`, `Distrusted`: see these classes.
        OSError: if the connection breaks; TimeoutError: if no answer comes.
        EOFError: if the other side closes the connection before it has sent data.
    """
    nonce = secrets.token_hex(16)
    _send(connection, {"rank": ours.rank, "nonce": nonce, "secret": bool(secret.key)})
    greeting = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER, _LONGEST_GREETING) or {}
    rank, their_nonce = _greeted(greeting)
    meeting = [ours.rank, rank, nonce, their_nonce]
    if not secret.proves(greeting.get("proof"), "greeting", *meeting):
        has_secret = greeting.get("secret") is True
        if "proof" not in greeting or not (secret.key or has_secret):
            raise Stranger
        raise Distrusted(rank, has_secret)
    _introduce(connection, ours, secret, ["caller", *meeting])
    theirs = _introduced(connection, rank, secret, ["answerer", *meeting])
    _send(connection, {"heard": True})
    return theirs


def answer(
    connection: socket.socket,
    rank: int,
    introduce: Callable[[Introduction], Introduction],
    secret: Secret,
) -> tuple[Introduction, Introduction]:
    """Answer a task that has connected to this task: the two tasks exchange introductions.

    Args:
        connection: the connected socket.
        rank: the rank of this task.
        introduce: function that takes the other task's introduction and returns this task's
            introduction. It has to return within a few seconds.
        secret: the `Secret`.

    Returns:
        The other task's introduction, and this task's introduction.

    Raises:
        The errors of `call`.
    """
    greeting = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER, _LONGEST_GREETING) or {}
    other, their_nonce = _greeted(greeting)
    nonce = secrets.token_hex(16)
    meeting = [other, rank, their_nonce, nonce]
    proof = secret.proof("greeting", *meeting)
    _send(connection, {"rank": rank, "nonce": nonce, "secret": bool(secret.key), "proof": proof})
    try:
        theirs = _introduced(connection, other, secret, ["caller", *meeting])
    except EOFError:  # the caller has not accepted the proof
        raise Distrusted(other, greeting.get("secret") is True) from None
    ours = introduce(theirs)
    _introduce(connection, ours, secret, ["answerer", *meeting])
    last = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER, _LONGEST_GREETING) or {}
    if last.get("heard") is not True:
        raise Stranger
    return theirs, ours


def _greeted(greeting):
    """Return the rank and the nonce of a greeting."""
    rank, nonce = greeting.get("rank"), greeting.get("nonce")
    if type(rank) is not int or not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise Stranger
    return rank, nonce


def _introduce(connection, ours, secret, who):
    text = json.dumps(dataclasses.asdict(ours))
    _send(connection, {"introduction": text, "proof": secret.proof(*who, text)})


def _introduced(connection, rank, secret, who):
    message = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER) or {}
    text = message.get("introduction")
    if not isinstance(text, str) or not secret.proves(message.get("proof"), *who, text):
        raise Stranger
    return Introduction.parsed(text, rank)


def _send(connection, message):
    connection.settimeout(_SECONDS_FOR_AN_ANSWER)
    connection.sendall(json_lines.encode(message))
