"""Joining: workers that know where worker 0 is find each other, or are told why not."""

import contextlib
import dataclasses
import errno
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from support.joinings import invitations, run
from support.meetings import SOON, needs_ipv6
from support.meetings import run as run_meeting

import tf_adasum
from tf_adasum.cluster import (
    addresses,
    coordinator,
    introductions,
    joining,
    own_address,
    reception,
    secret,
)
from tf_adasum.cluster.introductions import Introduction, Stranger
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import Cluster

ROOT = os.path.dirname(os.path.dirname(tf_adasum.__file__))
pytestmark = pytest.mark.one_stack


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """What takes seconds elsewhere, so that those who are there hear of each other, takes less."""
    monkeypatch.setattr(coordinator, "_SECONDS_TO_HOLD", 0.8)
    monkeypatch.setattr(coordinator, "_SECONDS_OF_DOUBT", 2.0)
    monkeypatch.setattr(joining, "_SECONDS_TO_TELL", (0.5, 4.0, 1.0))
    monkeypatch.setattr(joining, "_SECONDS_OF_DISTRUST", 2.0)


def assert_together(outcomes, count):
    """All have the same list, in which each has a place and a port of its own."""
    assert all(isinstance(outcome, Cluster) for outcome in outcomes), outcomes
    (found,) = {outcome.addresses for outcome in outcomes}
    assert sorted(outcome.rank for outcome in outcomes) == list(range(count))
    assert len(set(found)) == len(found) == count
    return found


# ---- workers that find each other ----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_everybody_gets_the_same_list(count):
    outcomes, _ = run(invitations(count))
    found = assert_together(outcomes, count)
    assert {addresses.split(each)[0] for each in found} == {"127.0.0.1"}
    assert outcomes[0].names == tuple(f"worker {rank}" for rank in range(count))


@pytest.mark.parametrize("delays", [[0, 0.4, 0], [0.6, 0, 0], [0.3, 0, 0.6]])
def test_workers_that_start_late_are_waited_for(delays):
    outcomes, seconds = run(invitations(3), delays=delays)
    assert_together(outcomes, 3)
    assert seconds[delays.index(0)] >= max(delays) - 0.05


def test_then_they_meet_with_worker_0_alone():
    outcomes, _ = run(invitations(4))
    assert_together(outcomes, 4)
    assert run_meeting(outcomes)[0] == [None] * 4


IPV6 = pytest.param("::1", marks=needs_ipv6)


@pytest.mark.parametrize("host", ["localhost", "127.0.1.1", IPV6])
def test_hosts_that_are_this_machine(host):
    outcomes, _ = run(invitations(3, f"[{host}]" if ":" in host else host))
    found = assert_together(outcomes, 3)
    assert {addresses.split(each)[0] for each in found} == {host}
    assert run_meeting(outcomes)[0] == [None] * 3


def test_a_worker_may_say_where_it_is():
    environments = [{}, {own_address.INTERFACE: "127.0.0.2"}, {own_address.INTERFACE: "lo"}]
    outcomes, _ = run(invitations(3), environments=environments)
    hosts = [addresses.split(each)[0] for each in assert_together(outcomes, 3)]
    assert hosts == ["127.0.0.1", "127.0.0.2", "127.0.0.1"]


def test_all_interfaces_are_no_address():
    invited = invitations(2)
    port = addresses.split(invited[0].coordinator)[1]
    invited[0] = dataclasses.replace(invited[0], coordinator=f"0.0.0.0:{port}")
    found = assert_together(run(invited)[0], 2)
    assert {addresses.split(each)[0] for each in found} == {"127.0.0.1"}


def test_ports_are_held_and_outside_of_those_that_the_system_gives():
    invited = invitations(1)[0]
    cluster = joining.join(invited, SOON, {})
    try:
        assert joining.join(invited, SOON, {}) is cluster
        _, port = cluster.host_and_port(0)
        with pytest.raises(OSError), socket.socket() as other:
            other.bind(("127.0.0.1", port))
    finally:
        joining.forget(cluster)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


# ---- addresses -----------------------------------------------------------------------------------


def list_of(own, *arrivals, given=""):
    """The list that worker 0 makes of these: (announced, called at, worker 0's end, its peer)."""
    made = coordinator.Coordinator.__new__(coordinator.Coordinator)
    made._invitation = joining.Invitation(own, 0, len(arrivals) + 1, "a test")
    made._own = Introduction(0, "0" * 16, {}, {"host": given, "port": 7000})
    made._came = {}
    for rank, (host, called, end, peer, *is_given) in enumerate(arrivals, 1):

        class Connection:
            def getsockname(self, end=end):
                return end, 1

            def getpeername(self, peer=peer):
                return peer, 1

        offer = {"host": host, "port": 7000 + rank, "coordinator": called, "is_given": is_given}
        offer["is_given"] = bool(is_given)
        theirs = Introduction(rank, "0" * 16, {}, offer)
        made._came[rank] = coordinator._arrival(theirs, Connection())
    return made._all_addresses()


LOCAL = ("127.0.0.1", "a", "127.0.1.1", "127.0.0.1")
REMOTE = ("10.0.0.2", "a", "10.0.0.1", "10.0.0.2")
BY_NUMBER = ("10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    ("own", "arrivals", "hosts"),
    [
        # An own name that is a loopback address on its machine is none on others.
        ("a:1", [LOCAL, REMOTE], ["a", "a", "10.0.0.2"]),
        ("localhost:1", [LOCAL, REMOTE], ["a", "a", "10.0.0.2"]),
        ("127.0.1.1:1", [LOCAL, BY_NUMBER], ["10.0.0.1", "10.0.0.1", "10.0.0.2"]),
        # Those of worker 0's machine by the name of worker 0, whichever way they came.
        ("a:1", [("10.0.0.1", "a", "10.0.0.1", "10.0.0.1"), REMOTE], ["a", "a", "10.0.0.2"]),
        ("0.0.0.0:1", [("10.0.0.2", "0.0.0.0", "10.0.0.1", "10.0.0.2")], ["10.0.0.1", "10.0.0.2"]),
        # Others call worker 0 by several names.
        ("a:1", [REMOTE, BY_NUMBER], ["10.0.0.1", "10.0.0.2", "10.0.0.2"]),
        # IPv4 over a socket of IPv6, and IPv6.
        ("a:1", [("10.0.0.2", "a", "::ffff:10.0.0.1", "::ffff:10.0.0.2")], ["a", "10.0.0.2"]),
        ("[fd00::1]:1", [("fd00::2", "fd00::1", "fd00::1", "fd00::2")], ["[fd00::1]", "[fd00::2]"]),
        # Behind a translation of addresses its own word counts; it is not on worker 0's machine.
        ("a:1", [("192.168.1.2", "a", "10.0.0.1", "10.0.0.9")], ["a", "192.168.1.2"]),
        # What was given counts.
        ("a:1", [("10.1.0.1", "a", "10.0.0.1", "10.0.0.1", True)], ["a", "10.1.0.1"]),
    ],
)  # fmt: skip
def test_what_workers_are_called(own, arrivals, hosts):
    expected = [f"{host}:{7000 + rank}" for rank, host in enumerate(hosts)]
    assert list_of(own, *arrivals) == expected


def test_worker_0_may_say_where_it_is():
    assert list_of("a:1", LOCAL, REMOTE, given="10.1.0.1") == [
        "10.1.0.1:7000", "10.1.0.1:7001", "10.0.0.2:7002"
    ]  # fmt: skip


# ---- workers that do not find each other ---------------------------------------------------------


def all_say(outcomes, kind, *parts):
    for outcome in outcomes:
        assert type(outcome) is kind, outcome
        for part in parts:
            assert part in str(outcome)


def test_missing_workers_are_named_on_all():
    invited = invitations(5)
    present = [invited[rank] for rank in (0, 2, 3)]
    outcomes, seconds = run(present, timeout=1)
    all_say(outcomes, TimeoutError, "worker 1, worker 4 did not start", "waited 1 s", "a test")
    assert max(seconds) < 8


def test_who_is_waited_for_is_said_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(joining, "SECONDS_BETWEEN_MESSAGES", 1.2)
    invited = invitations(3)
    run(invited[:2], timeout=3)
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert 1 <= len(lines) <= 3 and set(lines) == {"tf_adasum: waiting for worker 2."}
    assert shown.out == "", "the program's own"
    run(invited[1:2], timeout=3)
    (line,) = set(capsys.readouterr().err.splitlines())
    refused = os.strerror(errno.ECONNREFUSED)
    first = f"worker 0 ({invited[0].coordinator})"
    assert line == f"tf_adasum: waiting for {first}. worker 1 cannot reach {first}: {refused}."


def test_worker_0_that_is_not_there_is_named_with_what_was_tried(monkeypatch):
    port = invitations(1)[0].coordinator.rpartition(":")[2]
    invited = joining.Invitation(f"first:{port}", 1, 2, "a test")
    resolve = socket.getaddrinfo

    def both(host, *arguments, **options):
        hosts = ["127.0.0.2", "127.0.0.1"] if host == "first" else [host]
        return [found for each in hosts for found in resolve(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    ((outcome,), (waited,)) = run([invited], timeout=0.5)
    refused = os.strerror(errno.ECONNREFUSED)
    tried = f"cannot reach worker 0 (first:{port}): 127.0.0.2: {refused}, 127.0.0.1: {refused}."
    all_say([outcome], TimeoutError, tried, "0.5 s, but worker 0", joining.START_TIMEOUT)
    assert 0.5 <= waited < 5


def test_a_name_that_does_not_resolve_is_no_end(monkeypatch):
    """The names of a cluster's services appear when their processes have started."""
    invited = invitations(2, "service")
    resolve, since = socket.getaddrinfo, time.monotonic()

    def late(host, *arguments, **options):
        if host == "service" and time.monotonic() < since + 0.7:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve("127.0.0.1" if host == "service" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    assert_together(run(invited)[0], 2)
    since = time.monotonic() + 60
    ((outcome,), _) = run(invited[1:], timeout=0.5)
    all_say([outcome], TimeoutError, f"({invited[0].coordinator}): Name or service not known.")


def test_a_look_up_that_takes_very_long_does_not_outlast_the_timeout(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(5) or [])
    ((outcome,), (waited,)) = run(invitations(2)[1:], timeout=0.5)
    assert isinstance(outcome, TimeoutError) and waited < 3


def test_another_program_at_the_coordinator_s_port():
    invited = invitations(2)
    port = addresses.split(invited[0].coordinator)[1]
    with socket.create_server(("127.0.0.1", port)) as other:

        def answer():
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 10)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        outcomes, _ = run(invited, timeout=1)
        other.shutdown(socket.SHUT_RDWR)
    thread.join(SOON)
    assert type(outcomes[0]) is OSError and outcomes[0].errno == errno.EADDRINUSE
    assert f"worker 0 ({invited[0].coordinator}) is in use by this process" in str(outcomes[0])
    all_say(outcomes[1:], TimeoutError, "Another program answers at the address of worker 0")


def test_a_port_that_an_earlier_start_is_about_to_leave():
    invited = invitations(2)
    earlier = socket.create_server(addresses.split(invited[0].coordinator))
    threading.Timer(0.5, earlier.close).start()
    assert_together(run(invited)[0], 2)


# ---- workers that are not alike ------------------------------------------------------------------


def test_another_number_of_workers_is_an_error_on_all():
    invited = invitations(3)
    invited[2] = dataclasses.replace(invited[2], num_workers=4)
    outcomes, seconds = run(invited)
    all_say(outcomes, ValueError, "the same number of workers. Received: 3 on worker 0", "4 on wor")
    assert max(seconds) < SOON


def test_two_workers_of_one_rank_are_an_error_on_all():
    invited = invitations(3)
    outcomes, seconds = run([*invited, invited[1]], delays=[0, 0, 0.5, 0])
    all_say(outcomes, ValueError, "Two workers have the rank 1: one at 127.0.0.1:", "from 0 to 2")
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert max(seconds) < SOON


def test_one_that_comes_when_its_rank_is_taken_is_told_so():
    invited = invitations(2)
    outcomes, _ = run([*invited, invited[1]], delays=[0, 0, 1])
    found = assert_together(outcomes[:2], 2)
    again = "If this worker was restarted after all had joined, restart all workers."
    all_say(outcomes[2:], ValueError, "Two workers have the rank 1", found[1], again)


def test_two_workers_0(monkeypatch):
    """They are on machines of their own; the others reach one of them, and so does the other."""
    invited = invitations(3)
    port = addresses.split(invited[0].coordinator)[1]
    elsewhere = dataclasses.replace(invited[0], coordinator=f"127.0.0.3:{port}")
    call = joining._call
    monkeypatch.setattr(joining, "_call", lambda _, *rest: call(invited[0].coordinator, *rest))
    outcomes, seconds = run([*invited, elsewhere], delays=[0, 0, 1, 0])
    all_say(outcomes, ValueError, "Two workers have the rank 0")
    assert max(seconds) < SOON


def test_workers_of_two_jobs_are_not_mixed():
    """The first one to have the port trains; a worker that knows no job is anybody's."""
    one = [dataclasses.replace(each, job="17.0") for each in invitations(3)]
    one[2] = dataclasses.replace(one[2], job="")
    other = [dataclasses.replace(each, job="18.0") for each in one[:2]]
    outcomes, _ = run([*one, *other], delays=[0, 1.5, 1.5, 0.4, 0.4])
    assert_together(outcomes[:3], 3)
    words = (
        f"answers at {one[0].coordinator}. That worker is of job 17.0, this worker is of job 18.0."
    )
    all_say(outcomes[3:], ValueError, words)


@pytest.mark.parametrize("has_joined", [False, True])
def test_two_workers_0_on_one_machine(has_joined):
    """The second one cannot have the port. A worker 0 that has joined already is not disturbed."""
    invited = invitations(2)
    first = invited if has_joined else invited[:1]
    outcomes, seconds = run([*first, invited[0]], delays=[*(0 for _ in first), 0.5])
    if has_joined:
        assert_together(outcomes[:2], 2)
        outcomes = outcomes[2:]
    all_say(outcomes, ValueError, "Two workers have the rank 0: one at", "and one at 127.0.0.1:")
    assert max(seconds) < SOON


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 3}, "rank must be from 0 to 2. Received from a test"),
        ({"rank": -1}, "rank must be from 0 to 2. Received from a test"),
        ({"num_workers": 0}, "at least one worker. Received from a test"),
        ({"num_workers": 65_537}, "at most 65536 workers. Received from a test"),
        ({"coordinator": "a"}, "must look like 'host:port'. Received: 'a'. Received from a test"),
        ({"coordinator": "a:70000"}, "Received: 'a:70000'"),
    ],
)
def test_an_invitation_that_makes_no_sense(changes, words):
    invited = dataclasses.replace(invitations(3)[1], **changes)
    all_say(run([invited])[0], ValueError, words)


def test_an_interface_that_is_none():
    for value in ("eth77", "192.0.2.1", "0.0.0.0", "x" * 300):
        environments = [{own_address.INTERFACE: value}]
        outcomes, _ = run(invitations(2)[:1], environments=environments)
        all_say(outcomes, ValueError, f"{own_address.INTERFACE}={value!r}", "lo")


# ---- the secret ----------------------------------------------------------------------------------

ONE, OTHER, NONE = {secret.NAME: "one"}, {secret.NAME: "other"}, {}


def test_workers_with_one_secret():
    assert_together(run(invitations(3), environments=[ONE] * 3)[0], 3)


@pytest.mark.parametrize(
    ("environments", "received"),
    [
        ([ONE, ONE, NONE], [("a secret", "no secret"), ("no secret", "a secret")]),
        ([NONE, NONE, ONE], [("no secret", "a secret"), ("a secret", "no secret")]),
        ([ONE, ONE, OTHER], [("a secret", "another secret")] * 2),
    ],
)
def test_workers_with_different_secrets(environments, received):
    invited = invitations(3)
    first = f"worker 0 ({invited[0].coordinator})"
    outcomes, _ = run(invited, environments=environments, timeout=2)
    (own, other), (its, of_first) = received
    all_say(outcomes[:1], ValueError, f"Received: {own} on {first}, {other} on worker 2", "secret")
    all_say(outcomes[2:], ValueError, f"Received: {its} on worker 2, {of_first} on {first}")
    assert isinstance(outcomes[1], (ValueError, TimeoutError)) and "worker 2" in str(outcomes[1])


# ---- strangers, and workers that come again ------------------------------------------------------


def call_as(invitation, run, *, terms=None, hold=0.0, **offer):
    """A call of a worker that is played: the connection, and what worker 0 says."""
    connection = socket.create_connection(addresses.split(invitation.coordinator), SOON)
    own_terms = {coordinator.WORKERS: invitation.num_workers, "tf_adasum": joining.__version__}
    offer = {"host": "127.0.0.1", "port": 9, "coordinator": "127.0.0.1", "patience": hold, **offer}
    own = Introduction(invitation.rank, run * 16, {**own_terms, **(terms or {})}, offer)
    return connection, introductions.call(connection, own, Secret()).offer["news"]


@contextlib.contextmanager
def while_worker_0_waits(invited, *, timeout=SOON):
    """Worker 0 in a thread of its own; yields the list that gets its outcome."""
    outcomes = []
    waiting = threading.Thread(target=lambda: outcomes.extend(run(invited[:1], timeout=timeout)[0]))
    waiting.start()
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(addresses.split(invited[0].coordinator), 1).close()
            break
    yield outcomes
    waiting.join(2 * SOON)


def test_a_worker_that_starts_again_replaces_itself():
    invited = invitations(3)
    with while_worker_0_waits(invited) as outcomes:
        connection, news = call_as(invited[1], "a")
        assert news == {"missing": [2]}
        connection.close()
        outcomes += run(invited[1:])[0]
    assert ":9" not in str(assert_together(outcomes, 3))


def test_another_release_is_an_error_on_all():
    invited = invitations(2)
    with while_worker_0_waits(invited) as outcomes:
        connection, news = call_as(invited[1], "a", terms={"tf_adasum": "9.9"})
        connection.close()
    all_say(outcomes, ValueError, "the same tf_adasum. Received: ", "9.9 on worker 1 (127.0.0.1:9)")
    assert news["wrong"] == str(outcomes[0])


@pytest.mark.parametrize(
    "offer",
    [
        {"host": "a.b.c"},
        {"host": 7},
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "::ffff:0.0.0.0"},
        {"host": "fe80::1%\x1b[31m"},
        {"host": "fe80::1%a\nb"},
        {"host": "fe80::1%" + "a" * 65},
        {"port": 0},
        {"port": 1 << 16},
        {"port": True},
        {"port": "80"},
        {"coordinator": "a" * 300},
        {"coordinator": ["a"]},
        {"coordinator": "a b"},
        {"coordinator": "a\x1b[31m"},
        {"coordinator": "a\u202eb"},
    ],
)
def test_what_makes_no_sense_is_a_stranger_s(offer):
    invited = invitations(2)
    with while_worker_0_waits(invited) as outcomes:
        with pytest.raises((Stranger, EOFError, OSError)):
            call_as(invited[1], "a", **offer)
        outcomes += run(invited[1:])[0]
    assert_together(outcomes, 2)


@pytest.mark.parametrize("patience", [-1.0, 1e300, "a", None, True])
def test_no_patience_holds_worker_0_s_answer_for_long(patience):
    invited = invitations(3)
    with while_worker_0_waits(invited, timeout=1):
        since = time.monotonic()
        connection, news = call_as(invited[1], "a", patience=patience)
        waited = time.monotonic() - since
        connection.close()
    assert waited < 8 and (news.get("missing") == [2] or news["is_late"])


def test_silent_callers_keep_nobody_waiting():
    """More of them than are heard at a time."""
    invited = invitations(3)
    with contextlib.ExitStack() as stack, while_worker_0_waits(invited) as outcomes:
        for _ in range(2 * reception.MOST_STRANGERS):
            where = addresses.split(invited[0].coordinator)
            stack.enter_context(socket.create_connection(where, SOON))
        found, seconds = run(invited[1:])
        outcomes += found
    assert_together(outcomes, 3)
    assert max(seconds) < 10


def test_workers_that_wait_are_no_strangers(monkeypatch):
    """A crowd does not push those out whose calls are held."""
    monkeypatch.setattr(reception, "MOST_STRANGERS", 4)
    invited = invitations(4)
    with contextlib.ExitStack() as stack, while_worker_0_waits(invited) as outcomes:
        held = []
        first = threading.Thread(
            target=lambda: held.append(call_as(invited[1], "a", hold=60.0, port=10))
        )
        first.start()
        time.sleep(0.5)
        for _ in range(20):
            where = addresses.split(invited[0].coordinator)
            stack.enter_context(socket.create_connection(where, SOON))
        second = run(invited[2:])[0]
        first.join(SOON)
        outcomes += second
    (found,) = {outcome.addresses for outcome in outcomes}
    (connection, news), *_ = held
    connection.close()
    assert news == {"addresses": list(found)} and found[1] == "127.0.0.1:10"


# ---- many workers --------------------------------------------------------------------------------

# Each worker is a process of its own, made by a fork: Python alone, no TensorFlow.
PROGRAM = """
import os, sys, time
from tf_adasum.cluster import joining
from tf_adasum.cluster.invitation import Invitation
from tf_adasum.cluster.rendezvous import meet

count, coordinator, since = int(sys.argv[1]), sys.argv[2], time.monotonic()
for rank in range(count):
    if os.fork() == 0:
        cluster = joining.join(Invitation(coordinator, rank, count, "a test"), 120, {})
        meet(cluster, {"rule": "Adasum()"}, 120, environment={})
        os._exit(0 if cluster.rank == rank and len(set(cluster.addresses)) == count else 1)
failed = [code for _, code in (os.wait() for _ in range(count)) if code]
print(len(failed), time.monotonic() - since)
"""


@pytest.mark.parametrize("count", [32, pytest.param(256, marks=pytest.mark.slow)])
def test_many_processes_meet(count):
    coordinator = invitations(1)[0].coordinator
    ended = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, str(count), coordinator],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=240,
    )
    failed, seconds = ended.stdout.split()
    assert failed == "0", ended.stderr
    assert float(seconds) < 60, "on two cores that do something else, too"


# ---- what worker 0 may say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "news",
    [
        {"missing": 7},
        {"missing": [None, "a", 2]},
        {"missing": [], "addresses": 3},
        {"missing": [2], "addresses": ["127.0.0.1:1"]},
        {"missing": [2], "addresses": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]},
        {"missing": [2], "addresses": ["a", "b", "c"]},
        {"missing": [2], "wrong": {"a": "b"}},
        ["news"],
        None,
    ],
)
def test_news_that_make_no_sense_end_no_worker(news):
    invited = invitations(3)
    own = Introduction(0, "0" * 16, {}, {"news": news})
    done = threading.Event()
    with socket.create_server(addresses.split(invited[0].coordinator)) as listener:

        def answer():
            while not done.is_set():
                with contextlib.suppress(Exception), listener.accept()[0] as connection:
                    introductions.answer(connection, 0, lambda _: own, Secret())

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        ((outcome,), _) = run(invited[1:2], timeout=0.5)
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        answering.join(SOON)
    assert type(outcome) is TimeoutError, outcome
