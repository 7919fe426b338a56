"""What two tasks say to each other, and what a stranger between them or instead of one can do."""

import contextlib
import dataclasses
import json
import queue
import socket
import threading

import hypothesis
import hypothesis.strategies as st
import pytest
from support.fuzzing import cases

from tf_adasum.cluster import introductions, json_lines
from tf_adasum.cluster.introductions import Distrusted, Introduction, Stranger
from tf_adasum.cluster.secret import Secret

SOON = 15
KNOWN, OTHER, NONE = Secret(b"known"), Secret(b"other"), Secret()
TOKEN = "the token of the health monitor"
FIRST = Introduction(
    0, "a", {"rule": "Adasum()"}, {"token": TOKEN}, True, True, {0: {2: "No route to host"}}
)
SECOND = Introduction(1, "b", {"rule": "Adasum()"}, {"token": TOKEN})


class Exchange:
    """A caller and an answerer; what passes between them can be seen and changed.

    Attributes:
        caller, answerer: what each returned or raised.
        lines: those that were sent, in order, as pairs of who and what.
    """

    def __init__(self, secrets, change=lambda line: line):
        self.lines, self._change = [], change
        ends = [socket.socketpair() for _ in "ab"]
        outcomes = [queue.Queue(), queue.Queue()]
        bodies = [
            lambda: introductions.call(ends[0][0], FIRST, secrets[0]),
            lambda: introductions.answer(ends[1][0], 1, lambda _: SECOND, secrets[1])[0],
        ]
        relays = [
            threading.Thread(target=self._relay, args=["caller", ends[0][1], ends[1][1]]),
            threading.Thread(target=self._relay, args=["answerer", ends[1][1], ends[0][1]]),
        ]
        tasks = [
            threading.Thread(target=self._run, args=[body, outcome, end[0]])
            for body, outcome, end in zip(bodies, outcomes, ends, strict=True)
        ]
        for thread in relays + tasks:
            thread.start()
        self.caller, self.answerer = (outcome.get(timeout=SOON) for outcome in outcomes)
        for thread in relays + tasks:
            thread.join(SOON)
        for pair in ends:
            pair[1].close()

    @staticmethod
    def _run(body, outcome, connection):
        with connection:
            try:
                outcome.put(body())
            except Exception as error:
                outcome.put(error)

    def _relay(self, who, source, target):
        with contextlib.suppress(OSError):
            for line in source.makefile("rb"):
                self.lines.append((who, line))
                target.sendall(self._change(line))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def said_by(self, who):
        return [line for speaker, line in self.lines if speaker == who]

    @property
    def all(self):
        return b"".join(line for _, line in self.lines)


@pytest.mark.parametrize("secret", [KNOWN, NONE])
def test_two_tasks_introduce_themselves(secret):
    exchange = Exchange([secret, secret])
    assert (exchange.caller, exchange.answerer) == (SECOND, FIRST)
    assert b"known" not in exchange.all, "the secret itself"


@pytest.mark.parametrize("secrets", [(KNOWN, OTHER), (KNOWN, NONE), (NONE, KNOWN)])
def test_who_does_not_know_the_secret_is_told_nothing(secrets):
    exchange = Exchange(secrets)
    for error, rank, of_other in [
        (exchange.caller, 1, secrets[1]),
        (exchange.answerer, 0, secrets[0]),
    ]:
        assert isinstance(error, Distrusted)
        assert (error.rank, error.has_secret) == (rank, bool(of_other.key))
    assert TOKEN.encode() not in exchange.all and b"Adasum" not in exchange.all


def test_a_change_on_the_way_is_noticed():
    def change(line):
        return line.replace(TOKEN.encode(), TOKEN.upper().encode())

    exchange = Exchange([KNOWN, KNOWN], change)
    assert isinstance(exchange.answerer, Stranger)
    assert len(exchange.said_by("answerer")) == 1, "no introduction"
    assert not isinstance(exchange.caller, Introduction)


def spoken_to(lines, act, hears_first=False):
    """Runs one side against a program that sends these lines; returns the error and its words."""
    mine, theirs = socket.socketpair()
    heard = []

    def play():
        with theirs, contextlib.suppress(OSError):
            theirs.settimeout(SOON)
            if hears_first:
                heard.append(theirs.recv(1 << 16))
            for line in lines:
                theirs.sendall(line)
                if (piece := theirs.recv(1 << 16)) == b"":
                    return
                heard.append(piece)
            theirs.shutdown(socket.SHUT_WR)
            heard.append(theirs.recv(1 << 16))

    playing = threading.Thread(target=play)
    playing.start()
    with mine:
        try:
            outcome = act(mine)
        except Exception as error:
            outcome = error
    playing.join(SOON)
    return outcome, b"".join(heard)


def test_a_replayed_introduction_is_refused():
    exchange = Exchange([KNOWN, KNOWN])
    assert exchange.answerer == FIRST
    outcome, heard = spoken_to(
        exchange.said_by("caller"),
        lambda connection: introductions.answer(connection, 1, lambda _: SECOND, KNOWN),
    )
    assert isinstance(outcome, Stranger) and TOKEN.encode() not in heard

    outcome, heard = spoken_to(
        exchange.said_by("answerer"),
        lambda connection: introductions.call(connection, FIRST, KNOWN),
        hears_first=True,
    )
    assert isinstance(outcome, Distrusted) and TOKEN.encode() not in heard


def test_a_proof_is_for_one_direction_and_one_task():
    """What a task itself has said proves nothing to it, nor to a task of another rank."""
    for change in (
        lambda line: line.replace(b'"rank": 1', b'"rank": 2'),
        lambda line: line.replace(b'"rank": 0', b'"rank": 2'),
    ):
        exchange = Exchange([KNOWN, KNOWN], change)
        assert isinstance(exchange.caller, Distrusted)
        assert TOKEN.encode() not in exchange.all
    proofs = [json.loads(line).get("proof") for _, line in Exchange([KNOWN, KNOWN]).lines]
    assert len(set(proofs) - {None}) == 3


def test_a_greeting_without_end_is_not_read_to_its_end():
    outcome, heard = spoken_to(
        [b"7" * 2000, b"7" * 2000],
        lambda connection: introductions.answer(connection, 1, lambda _: SECOND, NONE),
    )
    assert isinstance(outcome, Stranger) and heard == b""


# ---- garbage -------------------------------------------------------------------------------------

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["rank", "nonce", "proof", "terms", "offer", "run", "troubles", "1", ""]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"[" * 70_000, b"1" * 70_000, b"\xff\xfe", b"{}", b"null", b"\n", b""]),
    JSON.map(lambda message: json.dumps(message).encode()),
)
NO_TASK = (Stranger, Distrusted, EOFError, OSError)


@cases(100)
@hypothesis.given(lines=st.lists(GARBAGE, min_size=1, max_size=2), greets=st.booleans())
def test_garbage_is_no_task(lines, greets):
    greeting = {"rank": 2, "nonce": "0" * 32, "secret": True, "proof": "0" * 64}
    lines = [b"".join(line.split(b"\n")) + b"\n" for line in lines]
    lines = [json_lines.encode(greeting), *lines] if greets else lines
    for act in (
        lambda connection: introductions.call(connection, FIRST, NONE),
        lambda connection: introductions.answer(connection, 1, lambda _: SECOND, NONE),
    ):
        outcome, _ = spoken_to(lines, act)
        assert isinstance(outcome, NO_TASK), outcome


FIELDS = [field.name for field in dataclasses.fields(Introduction)]


@cases(200)
@hypothesis.given(
    st.one_of(
        JSON,
        st.tuples(st.sampled_from(FIELDS), JSON).map(
            lambda changed: {**dataclasses.asdict(SECOND), changed[0]: changed[1]}
        ),
    )
)
def test_an_introduction_is_one_or_no_task_s(message):
    try:
        found = Introduction.parsed(json.dumps(message), 1)
    except Stranger:
        return
    assert found.rank == 1 and isinstance(found.run, str) and type(found.has_met_all) is bool
    assert isinstance(found.terms, dict) and isinstance(found.offer, dict)
    assert type(found.all_have) is bool
    for who, troubles in found.troubles.items():
        for whom, why in troubles.items():
            assert type(who) is int and type(whom) is int
            assert why.isprintable() and len(why) <= 200


@pytest.mark.parametrize("text", ["", "{", "[]", '"\ud800"', "\ud800", "[" * 70_000, "1" * 70_000])
def test_what_is_no_introduction(text):
    with pytest.raises(Stranger):
        Introduction.parsed(text, 1)
