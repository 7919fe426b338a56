"""The rendezvous: who meets, and what is said of those who do not."""

import dataclasses
import errno
import os
import re
import socket
import threading
import time

import pytest
from support.meetings import SOON, TERMS, needs_ipv6, port_of, run, tasks
from support.worker_group import free_ports

from tf_adasum.cluster import addresses, introductions, meeting, rendezvous, secret
from tf_adasum.cluster.rendezvous import meet
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import WorkerLostError

# ---- tasks that meet ---------------------------------------------------------------------------


def test_a_cluster_of_one():
    assert run(tasks(1))[0] == [None]


@pytest.mark.parametrize("count", [2, 3, 4, 16])
def test_everybody_meets(count):
    assert run(tasks(count))[0] == [None] * count


@pytest.mark.parametrize("delays", [[0, 0.4], [0.4, 0], [0.5, 0, 0.3, 0, 0.5]])
def test_tasks_that_start_late_are_waited_for(delays):
    outcomes, seconds = run(tasks(len(delays)), delays=delays)
    assert outcomes == [None] * len(delays)
    assert seconds[delays.index(0)] >= max(delays) - 0.05, "nobody leaves before the last one comes"


def test_twenty_times_without_a_failure():
    for attempt in range(20):
        count = 2 + attempt % 4
        delays = [0.05 * ((attempt * 7 + rank * 3) % 5) for rank in range(count)]
        outcomes, _ = run(tasks(count), delays=delays)
        assert outcomes == [None] * count, f"attempt {attempt}"


def test_the_port_is_free_afterwards():
    clusters = tasks(2)
    for _ in range(2):
        assert run(clusters)[0] == [None, None]
    for cluster in clusters:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port_of(cluster)))
            listener.listen()


@pytest.mark.parametrize("hosts", [["localhost"], ["127.0.0.1", "127.0.0.2"]])
def test_hosts_of_ipv4(hosts):
    assert run(tasks(2, hosts))[0] == [None, None]


@needs_ipv6
@pytest.mark.parametrize("hosts", [["[::1]"], ["[::1]", "127.0.0.1"]])
def test_hosts_of_ipv6(hosts):
    assert run(tasks(3, hosts))[0] == [None] * 3


@needs_ipv6
@pytest.mark.parametrize("listens", ["::1", "127.0.0.1"])
def test_a_name_with_addresses_of_both_families(monkeypatch, listens):
    """The task listens at one of them, which may be the second one that its name resolves to."""
    clusters = tasks(2, ["both"])
    resolve = socket.getaddrinfo

    def both(host, *arguments, **options):
        hosts = ["::1", "127.0.0.1"] if host == "both" else [host]
        return [found for each in hosts for found in resolve(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    bound = addresses.bound
    monkeypatch.setattr(
        addresses, "bound", lambda host, *rest, **more: bound(listens, *rest, **more)
    )
    assert run(clusters)[0] == [None, None]


def test_a_task_that_starts_again_while_others_are_waited_for():
    first, second, third = tasks(3)
    outcomes = []
    waiting = threading.Thread(target=lambda: outcomes.extend(run([first])[0]))
    waiting.start()
    ((gone,), _) = run([second], timeout=0.5)
    assert isinstance(gone, TimeoutError) and third.named([2]) in str(gone)
    assert run([second, third])[0] == [None, None]
    waiting.join(SOON)
    assert outcomes == [None]


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("is_met", [False, True])
def test_a_task_that_ends_after_it_was_heard_is_named(monkeypatch, gone, is_met):
    """It has met one of the others or both, which wait for a fourth one that comes later."""
    monkeypatch.setattr(meeting, "_SECONDS_TO_START_AGAIN", 1.0)
    clusters = tasks(4)
    others = [cluster for cluster in clusters if cluster.rank != gone]
    wanted = {cluster.rank for cluster in others[: 2 if is_met else 1]}
    terms = {"cluster": list(clusters[0].addresses), **TERMS}

    def end(cluster):
        with meeting.Meeting(cluster, terms, {}, secret.Secret()) as met:
            until = time.monotonic() + SOON
            while not wanted <= met._came.keys() & met._reached.keys():
                assert time.monotonic() < until
                met.call_round(until)
                time.sleep(0.05)

    ending = threading.Thread(target=end, args=[clusters[gone]])
    ending.start()
    outcomes, seconds = run(others, timeout=30, delays=[0, 0 if is_met else 1.0, 1.5])
    ending.join()
    for outcome in outcomes:
        assert isinstance(outcome, WorkerLostError), outcome
        assert str(outcome).startswith(f"{clusters[0].named([gone])} was lost while the workers")
    assert max(seconds) < SOON


# ---- tasks that do not meet --------------------------------------------------------------------


@pytest.mark.parametrize(("count", "absent"), [(2, [1]), (3, [0]), (4, [1, 3])])
def test_missing_tasks_are_named(count, absent):
    clusters = tasks(count)
    present = [cluster for cluster in clusters if cluster.rank not in absent]
    outcomes, seconds = run(present, timeout=0.5)
    for cluster, outcome, waited in zip(present, outcomes, seconds, strict=True):
        assert isinstance(outcome, TimeoutError)
        assert f"{cluster.named([cluster.rank])} waited 0.5 s" in str(outcome)
        assert f"but {cluster.named(absent)} did not start" in str(outcome)
        assert "Another program" not in str(outcome)
        assert 0.5 <= waited < 5


def test_who_is_waited_for_is_said_on_stderr(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "SECONDS_BETWEEN_MESSAGES", 0.5)
    run(tasks(2)[:1], timeout=1.5)
    shown = capsys.readouterr()
    assert shown.err.startswith("tf_adasum: waiting for worker 1 (") and shown.out == ""


def test_a_host_that_does_not_exist_is_named(monkeypatch):
    def unknown(*arguments, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    (cluster,) = tasks(1)
    other = "no-such-host.invalid:1"
    cluster = Cluster((*cluster.addresses, other), ("worker 0", "worker 1"), 0)
    ((outcome,), _) = run([cluster], timeout=0.3)
    assert isinstance(outcome, TimeoutError) and f"worker 1 ({other}) did not" in str(outcome)


class ListensElsewhere(Cluster):
    """A task whose address is wrong: it listens on another port."""

    def host_and_port(self, rank):
        if rank == self.rank:
            return "127.0.0.1", free_ports(1)[0]
        return super().host_and_port(rank)


def elsewhere(cluster):
    return ListensElsewhere(cluster.addresses, cluster.names, cluster.rank)


def assert_both_name_the_direction(outcomes, from_, to, why):
    for outcome in outcomes:
        assert isinstance(outcome, TimeoutError)
        assert re.search(rf"{from_}( \(\S+\))? cannot reach {re.escape(to)}: {why}\.", str(outcome))
        assert "not all workers have reached each other" in str(outcome)
        assert "did not start" not in str(outcome) and "Another program" not in str(outcome)


@pytest.mark.parametrize("unreachable", [0, 1])
def test_one_direction_is_no_meeting(unreachable):
    clusters = tasks(2)
    to = clusters[0].named([unreachable])
    clusters[unreachable] = elsewhere(clusters[unreachable])
    outcomes, seconds = run(clusters, timeout=3)
    why = os.strerror(errno.ECONNREFUSED)
    assert_both_name_the_direction(outcomes, f"worker {1 - unreachable}", to, why)
    assert max(seconds) < 8


def test_a_name_that_does_not_resolve_is_no_meeting(monkeypatch):
    resolve = socket.getaddrinfo

    def unknown(host, *arguments, **options):
        if host == "nowhere":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    clusters = tasks(2, ["127.0.0.1", "nowhere"])
    outcomes, _ = run(clusters, timeout=3)
    to, why = clusters[0].named([1]), "Name or service not known"
    assert_both_name_the_direction(outcomes, "worker 0", to, why)


@pytest.mark.parametrize(("caller", "unreachable"), [(1, 2), (1, 0), (0, 1)])
def test_a_third_task_waits_for_a_pair_that_does_not_meet(monkeypatch, caller, unreachable):
    clusters = tasks(3)
    out_of_reach = clusters[0].host_and_port(unreachable)
    connect = socket.create_connection

    def cut(where, *arguments, **options):
        if where == out_of_reach and threading.current_thread().name == "of the caller":
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        return connect(where, *arguments, **options)

    call = meeting.Meeting._call

    def named(self, *arguments):
        if self._own.rank == caller:
            threading.current_thread().name = "of the caller"
        call(self, *arguments)

    monkeypatch.setattr(socket, "create_connection", cut)
    monkeypatch.setattr(meeting.Meeting, "_call", named)
    # The third one hears of it by way of task 0, after two of the pauses between news.
    outcomes, seconds = run(clusters, timeout=5)
    to, why = clusters[0].named([unreachable]), os.strerror(errno.EHOSTUNREACH)
    assert_both_name_the_direction(outcomes, f"worker {caller}", to, why)
    assert min(seconds) >= 5


def test_task_0_tells_of_later_troubles():
    """Those that have met each other call no more."""
    with meeting.Meeting(tasks(3)[2], TERMS, {}, secret.Secret()) as met:
        own = introductions.Introduction(2, "own", TERMS, {})
        troubles = {1: {0: "No route to host"}}
        met._remember(introductions.Introduction(0, "run", TERMS, {}, troubles=troubles), own, None)
        met._remember(introductions.Introduction(1, "run", TERMS, {}), own, None)
        assert met.troubles_of_others()[1] == troubles[1]


def test_an_older_word_does_not_undo_a_newer_one():
    """Calls overlap: the one that began first may end last."""
    with meeting.Meeting(tasks(2)[0], TERMS, {}, secret.Secret()) as met:
        older = introductions.Introduction(1, "run", TERMS, {})
        for newer in (
            dataclasses.replace(older, has_met_all=True),
            dataclasses.replace(older, has_met_all=True, all_have=True),
        ):
            met._remember(newer, older, met._came)
            met._remember(older, older, met._reached)
            assert met.heard[1] == newer
        again = dataclasses.replace(older, run="another run")
        met._remember(again, older, met._came)
        assert met.heard[1] == again


def test_a_time_out_is_no_answer(monkeypatch):
    def no_answer(where, timeout):
        time.sleep(min(timeout, 0.1))
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", no_answer)
    first, second = tasks(2)
    ((outcome,), _) = run([first], timeout=0.5)
    assert f"cannot reach {second.named([1])}: {os.strerror(errno.ETIMEDOUT)}." in str(outcome)
    assert "Another program" not in str(outcome) and "answer" not in str(outcome)


def test_two_tasks_with_one_index():
    first, second = tasks(2)

    class First(Cluster):
        def host_and_port(self, rank):
            return second.host_and_port(1)

    outcomes, _ = run([first, First(first.addresses, first.names, 0)], timeout=1)
    assert f"cannot reach {second.named([1])}: worker 0 answers there" in str(outcomes[0])
    assert f"{second.named([1])}: this task itself answers there" in str(outcomes[1])


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_taken_port_is_named(host):
    clusters = tasks(2)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port_of(clusters[0])))
        taken.listen()
        start = time.monotonic()
        with pytest.raises(
            OSError, match=r"port of worker 0 \(127.0.0.1:\d+\) is in use"
        ) as raised:
            meet(clusters[0], TERMS, SOON)
    assert time.monotonic() - start < 5 and not isinstance(raised.value, TimeoutError)
    assert run(clusters)[0] == [None, None]


# ---- other terms -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "other", "delays"),
    [
        ("rule", {"rule": "Sum()"}, [0, 0]),
        ("rule", {"rule": "Sum()"}, [0.3, 0]),
        ("rule", {"rule": "Sum()"}, [0, 0.3]),
        ("devices per worker", {"devices per worker": 4}, [0, 0]),
        ("more", {"more": 1}, [0, 0]),
    ],
)
def test_two_tasks_with_different_terms(term, other, delays):
    outcomes, _ = run(tasks(2), terms=[TERMS, {**TERMS, **other}], delays=delays)
    value = str(other[term])
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, ValueError) and f"with the same {term}. Received" in str(outcome)
        assert f"{value} on worker 1" in str(outcome)
        assert f"{TERMS.get(term)} on worker 0" in str(outcome), f"said on worker {rank}"


def test_two_tasks_with_different_clusters():
    first, second = tasks(2)
    longer = Cluster((*second.addresses, "127.0.0.1:9"), (*second.names, "worker 2"), second.rank)
    outcomes, _ = run([first, longer])
    for outcome in outcomes:
        assert isinstance(outcome, ValueError) and "with the same cluster" in str(outcome)


@pytest.mark.parametrize(
    ("odd_one", "late"), [(0, None), (1, None), (2, None), (0, 1), (1, 2), (2, 0), (2, 2)]
)
def test_three_tasks_of_which_one_has_different_terms(odd_one, late):
    # A task that learns of it and leaves must not leave the others to wait for it in vain: each has
    # to hear of the difference, also one that starts half a second later.
    terms = [{"rule": "Sum()"} if rank == odd_one else {"rule": "Mean()"} for rank in range(3)]
    delays = [0.5 if rank == late else 0 for rank in range(3)]
    outcomes, _ = run(tasks(3), terms=terms, delays=delays, timeout=2)
    assert [type(outcome) for outcome in outcomes] == [ValueError] * 3
    for outcome in outcomes:
        assert "with the same rule" in str(outcome)
        assert f"Sum() on worker {odd_one}" in str(outcome)


# ---- tasks that task 0 has brought together ------------------------------------------------------


def brought_together(count):
    return [dataclasses.replace(each, first_knows_all=True) for each in tasks(count)]


@pytest.mark.parametrize("delays", [[0, 0, 0, 0], [0.4, 0, 0.2, 0]])
def test_only_task_0_meets_all(monkeypatch, delays):
    clusters, called = brought_together(4), []
    call = meeting.Meeting._call

    def noted(self, rank, *rest):
        called.append((self._own.rank, rank))
        call(self, rank, *rest)

    monkeypatch.setattr(meeting.Meeting, "_call", noted)
    assert run(clusters, delays=delays)[0] == [None] * 4
    assert {0 in pair for pair in called} == {True}


@pytest.mark.parametrize("odd_one", [0, 1, 2])
def test_all_of_them_hear_of_different_terms(odd_one):
    terms = [{"rule": "Sum()"} if rank == odd_one else {"rule": "Mean()"} for rank in range(3)]
    delays = [0.3 if rank == odd_one else 0 for rank in range(3)]
    outcomes, _ = run(brought_together(3), terms=terms, delays=delays)
    for outcome in outcomes:
        assert isinstance(outcome, ValueError) and "with the same rule. Received" in str(outcome)
        assert "Sum() on worker" in str(outcome) and "Mean() on worker" in str(outcome)


def test_all_of_them_hear_who_is_missing():
    clusters = brought_together(4)
    outcomes, _ = run(clusters[:3], timeout=3)
    absent = clusters[0].named([3])
    assert f"{absent} did not start" in str(outcomes[0])
    for outcome in outcomes:
        assert isinstance(outcome, TimeoutError)
        assert re.search(rf"worker 0( \(\S+\))? cannot reach {re.escape(absent)}", str(outcome))


# ---- the server that takes a port over ----------------------------------------------------------

# What a gRPC server sends first: the frame of its settings, 24 bytes, for no stream.
SETTINGS = bytes([0, 0, 24, 4, 0, 0, 0, 0, 0]) + bytes(24)


def answering(greetings):
    """Listens, and greets each that connects with the next of the greetings; None for silence."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen = []

    def serve():
        with listener:
            for greeting in greetings:
                connection, _ = listener.accept()
                with connection:
                    seen.append(greeting)
                    if greeting is not None:
                        connection.sendall(greeting)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}", seen


def test_waits_for_a_server_and_takes_nothing_else_for_one():
    greetings = [b"", b"\n", b'{"rank": 0}\n', SETTINGS]
    address, seen = answering(greetings)
    rendezvous.wait_for_server(address, timeout=30)
    assert seen == greetings


def test_a_server_that_does_not_come_is_waited_for_so_long():
    (port,) = free_ports(1)
    start = time.monotonic()
    rendezvous.wait_for_server(f"127.0.0.1:{port}", timeout=0.5)
    assert 0.5 <= time.monotonic() - start < SOON
