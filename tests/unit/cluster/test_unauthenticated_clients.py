"""Unauthenticated clients at the rendezvous: programs at the address of a task, callers, and the
secret."""

import contextlib
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.joining_workers import impatient, run  # noqa: F401 - a fixture
from support.pace import PACE
from support.rendezvous_tasks import SOON, connected, program_at, tasks

from tf_adasum.cluster import session
from tf_adasum.cluster.secret import Secret
from tf_adasum.environment_variables import SECRET, SECRET_FILE


@contextlib.contextmanager
def while_one_waits(cluster):
    """Let a task meet in a thread until the block ends; all others have to come in the block."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, [cluster])
        yield
        assert waiting.result(2 * SOON)[0] == [None]


# ---- other programs ----------------------------------------------------------------------------


def sends(content):
    def behave(connection, done):
        connection.recv(1 << 16)
        connection.sendall(content)

    return behave


def drips(connection, done):
    while not done.wait(0.3):
        connection.sendall(b" ")


def never_ends(connection, done):
    while not done.is_set():
        connection.sendall(b"x" * 65536)


PROGRAMS = {
    "silent": lambda connection, done: done.wait(),
    "closes": lambda connection, done: None,
    "reads and closes": sends(b""),
    "HTTP": sends(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "a huge line": sends(b'"' + b"7" * (1 << 20) + b'"\n'),
    "deep JSON": sends(b"[" * 60_000 + b"\n"),
    "echo": lambda connection, done: connection.sendall(connection.recv(1 << 16)),
    "drip": drips,
    "endless": never_ends,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_program_at_the_port_of_worker_0(program):
    first, second = tasks(2)
    with program_at(first, PROGRAMS[program]):
        ((outcome,), (waited,)) = run([second], timeout=1.5)
    assert isinstance(outcome, TimeoutError)
    assert f"{second.named([0])} did not start" in str(outcome)
    assert waited < 7 * PACE, "1.5 s, and 2 s for a result"
    said = f"worker 1 cannot reach {second.named([0])}: 127.0.0.1: another program answers there"
    assert said in str(outcome)


# ---- other callers -----------------------------------------------------------------------------

CROWD = 300


def is_open(connection):
    """Return whether the other end has not closed a connection."""
    while select.select([connection], [], [], 0)[0]:
        try:
            if not connection.recv(1 << 16):
                return False
        except ConnectionError:
            return False
    return True


def test_a_crowd_of_silent_callers_takes_few_connections():
    """They take few file descriptors, and the tasks still find each other."""
    first, second = tasks(2)
    with contextlib.ExitStack() as stack, while_one_waits(first):
        callers = [stack.enter_context(connected(first)) for _ in range(CROWD)]
        time.sleep(1)
        remaining = [caller for caller in callers if is_open(caller)]
        assert 0 < len(remaining) <= 32 + 2
        assert run([second])[0] == [None]


# ---- the secret ----------------------------------------------------------------------------------

ONE, OTHER, NONE = {SECRET: "one"}, {SECRET: "other"}, {}


def test_tasks_with_the_same_secret_meet(tmp_path):
    (tmp_path / "secret").write_text("one\n")
    environments = [ONE, {SECRET_FILE: str(tmp_path / "secret")}, ONE]
    assert run(tasks(3), environments=environments, delays=[0, 0.2, 0])[0] == [None] * 3


@pytest.mark.parametrize("late", [None, 0, 1])
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "environments",
    [[ONE, NONE], [NONE, ONE], [ONE, OTHER], [OTHER, ONE, ONE], [ONE, ONE, OTHER]],
)
def test_tasks_with_different_secrets(environments, late):
    clusters = tasks(len(environments))
    delays = [2.5 if cluster.rank == late else 0 for cluster in clusters]
    timeout = 6 * PACE
    outcomes, seconds = run(clusters, environments=environments, delays=delays, timeout=timeout)
    for own, waited in zip(environments, seconds, strict=True):
        # Whom worker 0 refuses need not wait; nor need the others, unless a worker comes late.
        assert waited < timeout or (late is not None and own == environments[0])
    for rank, (own, outcome) in enumerate(zip(environments, outcomes, strict=True)):
        # Those with the secret of task 0 get its message; the others can only compare with task 0.
        who = 0 if own == environments[0] else rank
        others = [each for each, its in enumerate(environments) if its != own] if who == 0 else [0]
        than = f"{clusters[0].named([who])} than on {clusters[0].named(others)}"
        is_patient = rank and own == environments[0]  # and its time may be over before worker 0's
        assert isinstance(outcome, (ValueError, TimeoutError) if is_patient else ValueError)
        for part in (f"Received: another secret on {than}, or none", SECRET, SECRET_FILE):
            assert part in str(outcome)


@pytest.mark.usefixtures("impatient")
def test_a_caller_without_the_secret_neither_takes_part_nor_ends_the_others():
    """Also if it calls for longer than a worker needs to prove the secret."""
    clusters, done = tasks(2), threading.Event()

    def call(place):
        with connected(clusters[0]):  # as soon as task 0 listens
            session.call(clusters[0].addresses[0], Secret(b"guess"), tried := {}, rank=1)
        assert session.kind_of(tried) == session.UNPROVEN
        while not done.wait(0.1):
            session.call(clusters[0].addresses[0], Secret(b"guess"), {}, rank=1)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, place) for place in range(3)]
        try:
            assert run(clusters, environments=[ONE, ONE], delays=[0, 2])[0] == [None, None]
        finally:
            done.set()
    for each in calls:
        each.result()


def test_without_a_secret_clients_get_few_sessions():
    first, second = tasks(2)
    with while_one_waits(first):
        connected(first).close()  # as soon as task 0 listens
        calls = [session.call(first.addresses[0], Secret(), {}) for _ in range(CROWD)]
        channels = list(filter(None, calls))
        for number, channel in enumerate(channels):
            channel.send({"op": "set", "key": str(number), "value": 0})
        time.sleep(1)
        remaining = [each for each in channels if is_open(each.socket)]
        for channel in channels:
            channel.close()
        assert 0 < len(remaining) <= 2 * 2 + 64
        assert run([second])[0] == [None]
