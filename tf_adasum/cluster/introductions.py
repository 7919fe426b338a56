"""How two tasks introduce themselves to each other, over one connection.

    caller                                  answerer
    rank, nonce                  ──▶
                                 ◀──        rank, nonce, proof of (ranks, nonces)
    introduction, proof          ──▶
                                 ◀──        introduction, proof
    heard                        ──▶

Each line is a JSON object. A proof is of the `Secret` and covers who speaks, both ranks, both
nonces and the introduction: it is worth nothing in another connection, or for another introduction.
Nobody introduces itself before the other one has proved that it knows the secret. What goes over
the connection is not encrypted. Standard library only.
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

# Long, because many tasks may start on one busy machine; and because a caller has counted this
# task's introduction when it says that it has heard it: without that word its task may leave, and
# this one wait for it in vain.
_SECONDS_FOR_AN_ANSWER = 10.0

_LONGEST_GREETING = 1 << 10  # bytes; it takes 150
_LONGEST_TROUBLE, _LONGEST_DIFFERENCE = 200, 4000  # characters
_NONCE = re.compile(r"[0-9a-f]{32}")


class Stranger(Exception):
    """What is at the other end is no task of a cluster."""


class Distrusted(Exception):
    """The other one says that it is a task, and does not prove that it knows the secret.

    Attributes:
        rank: which one it says it is.
        has_secret: whether it says that it has one.
    """

    def __init__(self, rank: int, has_secret: bool):
        super().__init__()
        self.rank, self.has_secret = rank, has_secret


@dataclasses.dataclass(frozen=True)
class Introduction:
    """What a task says of itself.

    Attributes:
        rank: which one it is.
        run: a random name of this meeting of it: a process that starts again has another one.
        terms: what all tasks have to have in common.
        offer: what else it tells.
        has_met_all: whether it has met all others.
        all_have: whether it knows that of everybody.
        troubles: from ranks to why these cannot reach whom: its own, and what it has heard.
        difference: what task 0 says of tasks that were started differently.
        lost: which task has ended after it was heard; "" if none is known.
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
        """Return the introduction of a task; raise `Stranger` if it is none."""
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
    """Return the pairs of a dict from ranks."""
    pairs = message.items() if isinstance(message, dict) else ()
    return [(int(rank), value) for rank, value in pairs if re.fullmatch("[0-9]{1,9}", rank)]


def printable(text: Any, longest: int) -> str:
    """Return what another task says as text to be shown, "" if it is none."""
    shown = text[:longest] if isinstance(text, str) else ""
    return "".join(each if each.isprintable() else "?" for each in shown)


def call(connection: socket.socket, ours: Introduction, secret: Secret) -> Introduction:
    """Introduce this task to the one that answers, and return how that one does.

    Args:
        connection: a connected socket.
        ours: this task's introduction.
        secret: the `Secret`.

    Raises:
        Stranger, Distrusted: as they say.
        OSError: if the connection breaks; TimeoutError: if no answer comes.
        EOFError: if the other side closes the connection without a word.
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
    """Hear how a caller introduces itself, and introduce this task to it.

    Args:
        connection: a connected socket.
        rank: this task's.
        introduce: function of the caller's introduction that returns this task's, within seconds.
        secret: the `Secret`.

    Returns:
        The caller's introduction, and what this task has told it.

    Raises:
        Stranger, Distrusted, OSError, EOFError: as `call`.
    """
    greeting = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER, _LONGEST_GREETING) or {}
    other, their_nonce = _greeted(greeting)
    nonce = secrets.token_hex(16)
    meeting = [other, rank, their_nonce, nonce]
    proof = secret.proof("greeting", *meeting)
    _send(connection, {"rank": rank, "nonce": nonce, "secret": bool(secret.key), "proof": proof})
    try:
        theirs = _introduced(connection, other, secret, ["caller", *meeting])
    except EOFError:  # the proof was not good enough for it
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
