"""Strangers at the rendezvous: programs at the address of a task, callers, and the secret."""

import contextlib
import dataclasses
import json
import socket
import threading
import time

import pytest
from support.meetings import SOON, TERMS, callers_of, port_of, program_at, run, tasks

from tf_adasum.cluster import introductions, json_lines, meeting, reception, secret
from tf_adasum.cluster.introductions import Introduction
from tf_adasum.cluster.rendezvous import meet
from tf_adasum.cluster.secret import Secret

# ---- other programs ----------------------------------------------------------------------------


def stays_silent(connection, done):
    done.wait()


def closes(connection, done):
    pass


def reads_and_closes(connection, done):
    connection.recv(1 << 16)


def sends(content):
    def behave(connection, done):
        connection.recv(1 << 16)
        connection.sendall(content)

    return behave


def echoes(connection, done):
    connection.sendall(connection.recv(1 << 16))


def drips(connection, done):
    while not done.wait(0.3):
        connection.sendall(b" ")


def never_ends(connection, done):
    while not done.is_set():
        connection.sendall(b"x" * 65536)


PROGRAMS = {
    "silent": stays_silent,
    "closes": closes,
    "reads and closes": reads_and_closes,
    "HTTP": sends(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "binary": sends(bytes(range(256)) * 4 + b"\n"),
    "NUL and newline": sends(b"\0\n"),
    "a huge line": sends(b"7" * (1 << 20)),
    "a huge line with an end": sends(b'"' + b"7" * (1 << 20) + b'"\n'),
    "other JSON": sends(b"[1, 2]\n"),
    "deep JSON": sends(b"[" * 60_000 + b"\n"),
    "rank out of range": sends(b'{"rank": 7, "terms": {}}\n'),
    "rank of another type": sends(b'{"rank": {"a": []}, "terms": {}}\n'),
    "terms of another type": sends(b'{"rank": 1, "terms": 3}\n'),
    "echo": echoes,
    "drip": drips,
    "endless": never_ends,
}
GIVES_NO_ANSWER = {"silent", "drip"}
ENDS_EARLY = {"closes", "reads and closes", "a huge line", "a huge line with an end", "endless"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_program_at_a_peers_port(program):
    first, second = tasks(2)
    with program_at(second, PROGRAMS[program]):
        ((outcome,), (waited,)) = run([first], timeout=0.2, limit=5)
    assert isinstance(outcome, TimeoutError)
    assert f"{second.named([1])} did not start" in str(outcome)
    assert waited < 4, "0.2 s, and 2 s for an answer"
    said = f"Another program answers at the address of {second.named([1])}"
    if program in GIVES_NO_ANSWER:
        said = f"The program at the address of {second.named([1])} does not answer"
    # A connection that is closed with something unread is reset: no telling who was there.
    assert (said in str(outcome)) or program in ENDS_EARLY


@pytest.mark.parametrize("program", ["HTTP", "silent"])
def test_a_task_that_comes_after_another_program(program):
    first, second = tasks(2)
    outcomes = []
    waiting = threading.Thread(target=lambda: outcomes.extend(run([first])[0]))
    with program_at(second, PROGRAMS[program]):
        waiting.start()
        time.sleep(0.2)
    assert run([second])[0] == [None]
    waiting.join(SOON)
    assert outcomes == [None]


# ---- other callers -----------------------------------------------------------------------------


CALLERS = {
    "silent": stays_silent,
    "closes": closes,
    "HTTP": lambda connection, done: connection.sendall(b"GET / HTTP/1.1\r\n\r\n"),
    "huge": lambda connection, done: connection.sendall(b"7" * (1 << 20)),
    "deep JSON": lambda connection, done: connection.sendall(b"[" * 60_000 + b"\n"),
    "drip": drips,
}


@pytest.mark.parametrize("caller", CALLERS)
def test_a_caller_that_is_no_task_does_not_block_the_others(caller):
    clusters = tasks(3)
    with callers_of(clusters, CALLERS[caller]):
        # Late, so that the caller comes first at the tasks that are there.
        outcomes, seconds = run(clusters, delays=[0, 0, 0.2], timeout=5, limit=7)
    assert outcomes == [None] * 3
    assert max(seconds) < 5


def test_several_silent_callers_at_once():
    clusters = tasks(2)
    with callers_of(clusters, stays_silent, count=4):
        outcomes, _ = run(clusters, delays=[0, 0.2], timeout=5, limit=7)
    assert outcomes == [None] * 2


CROWD = 300


def test_of_a_crowd_of_silent_callers_few_are_heard_at_a_time(monkeypatch):
    """They take few threads and file descriptors, and the tasks still find each other."""
    clusters = tasks(2)
    answering, most, lock = [0], [0], threading.Lock()
    answer = meeting.Meeting._answer

    def counted(self, connection):
        with lock:
            answering[0] += 1
            most[0] = max(most[0], answering[0])
        answer(self, connection)
        with lock:
            answering[0] -= 1

    monkeypatch.setattr(meeting.Meeting, "_answer", counted)
    with contextlib.ExitStack() as stack:
        outcomes = []
        waiting = threading.Thread(target=lambda: outcomes.extend(run(clusters[:1])[0]))
        waiting.start()
        deadline, count = time.monotonic() + SOON, 0
        while count < CROWD and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionRefusedError):
                where = ("127.0.0.1", port_of(clusters[0]))
                stack.enter_context(socket.create_connection(where, timeout=SOON))
                count += 1
        assert count == CROWD
        assert run(clusters[1:])[0] == [None]
        waiting.join(SOON)
    assert outcomes == [None]
    assert most[0] <= 2 * (reception.MOST_STRANGERS + 2), "those that have to go need a moment"


# ---- the secret ----------------------------------------------------------------------------------

ONE, OTHER, NONE = {secret.NAME: "one"}, {secret.NAME: "other"}, {}


def test_tasks_with_the_same_secret_meet(tmp_path):
    (tmp_path / "secret").write_text("one\n")
    environments = [ONE, {secret.FILE_NAME: str(tmp_path / "secret")}, ONE]
    assert run(tasks(3), environments=environments, delays=[0, 0.2, 0])[0] == [None] * 3


@pytest.mark.parametrize(
    ("environments", "words"),
    [
        ([ONE, NONE], [["a secret", "no secret"], ["no secret", "a secret"]]),
        ([NONE, ONE], [["no secret", "a secret"], ["a secret", "no secret"]]),
        ([ONE, OTHER], [["a secret", "another secret"]] * 2),
    ],
)
@pytest.mark.parametrize("delays", [[0, 0], [0, 0.3]])
def test_tasks_with_different_secrets(environments, words, delays):
    clusters = tasks(2)
    outcomes, seconds = run(clusters, environments=environments, delays=delays)
    assert max(seconds) < SOON, "before the time is over"
    for rank, (outcome, (own, other)) in enumerate(zip(outcomes, words, strict=True)):
        assert isinstance(outcome, ValueError)
        received = (
            f"{own} on {clusters[0].named([rank])}, {other} on {clusters[0].named([1 - rank])}"
        )
        assert f"Received: {received}" in str(outcome)
        assert secret.NAME in str(outcome) and secret.FILE_NAME in str(outcome)


@pytest.mark.parametrize("odd_one", [0, 2])
@pytest.mark.parametrize("late", [None, 0, 1])
def test_one_of_three_tasks_has_another_secret(odd_one, late):
    clusters = tasks(3)
    environments = [OTHER if rank == odd_one else ONE for rank in range(3)]
    delays = [0.4 if rank == late else 0 for rank in range(3)]
    outcomes, seconds = run(clusters, environments=environments, delays=delays)
    assert max(seconds) < SOON
    for rank, outcome in enumerate(outcomes):
        others = [0, 1, 2]
        others.remove(odd_one)
        named = others if rank == odd_one else [odd_one]
        assert isinstance(outcome, ValueError)
        assert all(
            f"another secret on {clusters[0].named([each])}" in str(outcome) for each in named
        )


def test_a_secret_that_cannot_be_used_is_an_error_at_once():
    with pytest.raises(ValueError, match=f"{secret.NAME} gives an empty secret"):
        meet(tasks(2)[0], TERMS, SOON, environment={secret.NAME: ""})


def test_a_stranger_without_the_secret_neither_takes_part_nor_ends_the_others():
    clusters = tasks(2)
    told, tries = [], []
    impostor = Introduction(1, "impostor", {"rule": "Sum()"}, {})

    def call(connection, done):
        try:
            told.append(introductions.call(connection, impostor, Secret(b"guess")))
        except Exception as error:
            tries.append(type(error))

    def send_all(connection, done):
        greeting = {"rank": 1, "nonce": "0" * 32, "secret": True}
        message = {"introduction": json.dumps(dataclasses.asdict(impostor)), "proof": "0" * 64}
        connection.sendall(json_lines.encode(greeting))
        told.append(connection.recv(1 << 16))
        connection.sendall(json_lines.encode(message))
        told.append(connection.recv(1 << 16))

    with callers_of(clusters[:1], call, count=3), callers_of(clusters[:1], send_all):
        outcomes, _ = run(clusters, environments=[ONE, ONE], delays=[0, 0.5])
    assert outcomes == [None, None]
    assert set(tries) == {introductions.Distrusted}
    assert b"rank" in told[0] and told[1:] == [b""], "no introduction"


def test_a_stranger_at_the_address_of_a_task_is_told_nothing():
    first, second = tasks(2)
    heard = []

    def answer(connection, done):
        with contextlib.suppress(Exception):
            introductions.answer(connection, 1, lambda _: impostor, Secret(b"guess"))
        heard.append(connection.recv(1 << 16))

    impostor = Introduction(1, "impostor", {}, {})
    with program_at(second, answer):
        ((outcome,), _) = run([first], timeout=0.5, environments=[ONE])
    assert isinstance(outcome, ValueError)
    assert f"another secret on {second.named([1])}" in str(outcome)
    assert set(heard) == {b""}
