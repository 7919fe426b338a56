"""What two tasks send each other, and what an unauthenticated client between or instead of them
can do."""

import contextlib
import dataclasses
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import hypothesis.strategies as st
import pytest
from support.fuzzing import fuzz_settings, json_values

from tf_adasum.cluster import handshake, json_lines
from tf_adasum.cluster.handshake import AuthenticationError, Hello, ProtocolError
from tf_adasum.cluster.secret import Secret

SOON = 15
KNOWN, OTHER, NONE = Secret(b"known"), Secret(b"other"), Secret()
TOKEN = "the token of the health monitor"
FIRST = Hello(
    0, "a", {"rule": "Adasum()"}, {"token": TOKEN}, True, True, {0: {2: "No route to host"}}
)
SECOND = Hello(1, "b", {"rule": "Adasum()"}, {"token": TOKEN})


def outcome_of(act, *arguments):
    """Return what a function returns or raises."""
    try:
        return act(*arguments)
    except Exception as error:
        return error


def call(connection, secret=NONE):
    with connection:
        return outcome_of(handshake.call, connection, FIRST, secret)


def answer(connection, secret=NONE):
    with connection:
        found = outcome_of(handshake.answer, connection, 1, lambda _: SECOND, secret)
        return found[0] if isinstance(found, tuple) else found


class Exchange:
    """A caller and an answerer; what passes between them can be seen and changed.

    Attributes:
        caller, answerer: what each returned or raised.
        lines: the lines that the caller sent, and those that the answerer sent.
    """

    def __init__(self, secrets, change=lambda line: line):
        self.lines, self._change = ([], []), change
        (caller, called), (answerer, answered) = socket.socketpair(), socket.socketpair()
        with called, answered, ThreadPoolExecutor(4) as pool:
            pool.submit(self._relay, called, answered, self.lines[0])
            pool.submit(self._relay, answered, called, self.lines[1])
            both = pool.submit(call, caller, secrets[0]), pool.submit(answer, answerer, secrets[1])
            self.caller, self.answerer = (each.result(SOON) for each in both)

    def _relay(self, source, target, lines):
        with contextlib.suppress(OSError):
            for line in source.makefile("rb"):
                lines.append(line)
                target.sendall(self._change(line))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    @property
    def all(self):
        return b"".join(self.lines[0] + self.lines[1])


@pytest.mark.parametrize("secret", [KNOWN, NONE])
def test_two_tasks_exchange_their_hellos(secret):
    exchange = Exchange([secret, secret])
    assert (exchange.caller, exchange.answerer) == (SECOND, FIRST)
    assert b"known" not in exchange.all, "the secret itself"


@pytest.mark.parametrize("secrets", [(KNOWN, OTHER), (KNOWN, NONE), (NONE, KNOWN)])
def test_a_program_without_the_secret_receives_nothing(secrets):
    exchange = Exchange(secrets)
    for error, rank, of_other in [
        (exchange.caller, 1, secrets[1]),
        (exchange.answerer, 0, secrets[0]),
    ]:
        assert isinstance(error, AuthenticationError)
        assert (error.rank, error.has_secret) == (rank, bool(of_other.key))
    assert TOKEN.encode() not in exchange.all and b"Adasum" not in exchange.all


def test_a_change_on_the_way_is_noticed():
    token = TOKEN.encode()
    exchange = Exchange([KNOWN, KNOWN], lambda line: line.replace(token, token.upper()))
    assert isinstance(exchange.answerer, ProtocolError)
    assert len(exchange.lines[1]) == 1, "no hello message"
    assert not isinstance(exchange.caller, Hello)


@pytest.mark.parametrize("rank", [b'"rank": 1', b'"rank": 0'])
def test_a_proof_is_for_one_task(rank):
    """What a task itself has sent proves nothing to a task of another rank."""
    exchange = Exchange([KNOWN, KNOWN], lambda line: line.replace(rank, b'"rank": 2'))
    assert isinstance(exchange.caller, AuthenticationError)
    assert TOKEN.encode() not in exchange.all


def test_a_proof_is_for_one_direction():
    lines = Exchange([KNOWN, KNOWN]).lines
    proofs = [json.loads(line).get("proof") for line in lines[0] + lines[1]]
    assert len(set(proofs) - {None}) == 3


def spoken_to(lines, act, *arguments, hears_first=False):
    """Run one side against a program that sends these lines; return the outcome, and its words."""
    mine, theirs = socket.socketpair()
    hellos = []
    with theirs, ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act, mine, *arguments)
        theirs.settimeout(SOON)
        with contextlib.suppress(OSError):
            if hears_first:
                hellos.append(theirs.recv(1 << 16))
            for line in lines:
                theirs.sendall(line)
                hellos.append(theirs.recv(1 << 16))
            theirs.shutdown(socket.SHUT_WR)
            hellos.append(theirs.recv(1 << 16))
        return acting.result(SOON), b"".join(hellos)


def test_a_replayed_hello_is_refused():
    exchange = Exchange([KNOWN, KNOWN])
    assert exchange.answerer == FIRST
    outcome, hellos = spoken_to(exchange.lines[0], answer, KNOWN)
    assert isinstance(outcome, ProtocolError) and TOKEN.encode() not in hellos
    outcome, hellos = spoken_to(exchange.lines[1], call, KNOWN, hears_first=True)
    assert isinstance(outcome, AuthenticationError) and TOKEN.encode() not in hellos


def test_a_greeting_without_end_is_not_read_to_its_end():
    outcome, hellos = spoken_to([b"7" * 2000, b"7" * 2000], answer)
    assert isinstance(outcome, ProtocolError) and hellos == b""


# ---- garbage -------------------------------------------------------------------------------------

KEYS = ["rank", "nonce", "proof", "settings", "payload", "run", "failures", "1", ""]
JSON = st.integers(-3, 3) | json_values(st.sampled_from(KEYS))
GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"[" * 70_000, b"1" * 70_000, b"\xff\xfe", b"{}", b"null", b"\n", b""]),
    JSON.map(lambda message: json.dumps(message).encode()),
)


@fuzz_settings(100)
@hypothesis.given(lines=st.lists(GARBAGE, min_size=1, max_size=2), greets=st.booleans())
def test_garbage_is_no_task(lines, greets):
    greeting = {"rank": 2, "nonce": "0" * 32, "secret": True, "proof": "0" * 64}
    lines = [b"".join(line.split(b"\n")) + b"\n" for line in lines]
    lines = [json_lines.encode(greeting), *lines] if greets else lines
    for act in (call, answer):
        outcome, _ = spoken_to(lines, act)
        assert isinstance(outcome, (ProtocolError, AuthenticationError, EOFError, OSError)), outcome


CHANGED = st.dictionaries(
    st.sampled_from([field.name for field in dataclasses.fields(Hello)]), JSON, max_size=1
)


@fuzz_settings(200)
@hypothesis.given(st.one_of(JSON, CHANGED.map(lambda new: {**dataclasses.asdict(SECOND), **new})))
def test_a_hello_is_parsed_or_refused(message):
    try:
        found = Hello.parsed(json.dumps(message), 1)
    except ProtocolError:
        return
    assert found.rank == 1 and isinstance(found.run, str)
    assert isinstance(found.settings, dict) and isinstance(found.payload, dict)
    assert type(found.is_connected_to_all) is bool and type(found.all_are_connected) is bool
    for who, failures in found.failures.items():
        for whom, why in failures.items():
            assert type(who) is int and type(whom) is int
            assert why.isprintable() and len(why) <= 200


@pytest.mark.parametrize("text", ["", "{", "[]", '"\ud800"', "\ud800", "[" * 70_000, "1" * 70_000])
def test_what_is_no_hello(text):
    with pytest.raises(ProtocolError):
        Hello.parsed(text, 1)
