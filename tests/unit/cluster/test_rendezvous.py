"""The rendezvous: which tasks meet, and what is reported of those that do not."""

import contextlib
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.joining_workers import configs_of, run
from support.pace import PACE
from support.rendezvous_tasks import (
    SETTINGS,
    SOON,
    cluster_of,
    needs_ipv6,
    tasks,
)

from tf_adasum.cluster import messages, ports, rendezvous, start_round
from tf_adasum.cluster.rendezvous import Participant
from tf_adasum.errors import WorkerLostError

# ---- tasks that meet ---------------------------------------------------------------------------

LOCAL = ("127.0.0.1",)


@pytest.mark.parametrize(
    ("count", "hosts"),
    [
        (1, LOCAL),
        (2, LOCAL),
        (16, LOCAL),
        (2, ["localhost"]),
        (2, ["127.0.0.1", "127.0.0.2"]),
        pytest.param(3, ["[::1]"], marks=needs_ipv6),
        pytest.param(3, ["[::1]", "127.0.0.1"], marks=needs_ipv6),
    ],
)
def test_everybody_meets(count, hosts):
    assert run(tasks(count, hosts))[0] == [None] * count


@pytest.mark.parametrize("gone", [None, 0, 1, 2])
@pytest.mark.parametrize("workers_of", [tasks, configs_of])
def test_a_task_that_never_comes_is_named_or_one_that_ends_meanwhile(monkeypatch, gone, workers_of):
    """The one that ends is known to task 0, or is task 0."""
    others = {0, 1, 2} - {gone}
    monkeypatch.setattr(rendezvous, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(start_round, "LEASE_SECONDS", 1.0)
    is_over = threading.Semaphore(0)

    def part(own):
        rank = own.cluster.rank
        if rank == 3:
            assert all(is_over.acquire(timeout=SOON) for _ in others)
        elif rank == gone:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(own.meet, SETTINGS, {}, 4)
                time.sleep(1.5)
                own.close()
                waiting.exception()
        else:
            try:
                own.meet(SETTINGS, {}, 1.5 if gone is None else 2 * SOON)
            finally:
                is_over.release()
                own.close()

    outcomes, seconds = run(workers_of(4), then=part)
    named = "but worker 3 .* did not start" if gone is None else f"^worker {gone} .* was lost while"
    for rank in others:
        expected = TimeoutError if gone is None else WorkerLostError
        assert isinstance(outcomes[rank], expected), outcomes[rank]
        assert re.search(named, str(outcomes[rank]))
    assert max(seconds) < SOON


def test_worker_0_that_restarts_after_all_have_joined_is_lost(monkeypatch):
    """The others have told TensorFlow the address of the process that has ended."""
    monkeypatch.setattr(start_round, "LEASE_SECONDS", 1.0)
    configs, have_joined = configs_of(3), threading.Barrier(3)

    def part(own):
        have_joined.wait(SOON)
        if own.cluster.rank == 0:
            own.close()
            own = Participant(configs[0], {})
            own.join(SOON)
        with contextlib.closing(own):
            own.meet(SETTINGS, {}, SOON)

    outcomes, seconds = run(configs, then=part)
    assert all(isinstance(outcome, WorkerLostError) for outcome in outcomes), outcomes
    for outcome in outcomes[1:]:
        assert str(outcome).startswith("worker 0 (127.0.0.1:")
    assert max(seconds) < SOON


def test_a_name_with_two_addresses(monkeypatch):
    """As `localhost` on many machines: nobody listens at the first address."""
    resolve = socket.getaddrinfo

    def both(host, *arguments, **options):
        refusing = resolve("127.0.0.2", *arguments, **options)
        return [*refusing, *resolve(host, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    monkeypatch.setattr(rendezvous, "LEASE_SECONDS", 1.0)
    assert run(tasks(3, ["127.0.0.1"]), delays=[0, 0, 2.5])[0] == [None] * 3


def test_task_0_names_a_task_that_ends_before_it_has_read_the_result(monkeypatch):
    monkeypatch.setattr(start_round, "LEASE_SECONDS", 1.0)

    def end_after_the_result(self, result):
        while not self.session.value("result"):
            time.sleep(0.01)
        self.session.__exit__()
        return {"of": 0}

    monkeypatch.setattr(Participant, "_follow", end_after_the_result)

    (outcome, _), _ = run(tasks(2))
    assert isinstance(outcome, WorkerLostError) and "worker 1" in str(outcome)


# ---- tasks that do not meet --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers_of", "count", "absent"),
    [(tasks, 2, [1]), (tasks, 3, [0]), (tasks, 4, [1, 3]), (configs_of, 5, [1, 4])],
)
def test_missing_workers_are_named_on_all(monkeypatch, capsys, workers_of, count, absent):
    monkeypatch.setattr(rendezvous, "PATIENCE_SECONDS", 0.7)
    workers, timeout = workers_of(count), 2 * PACE
    present = [each for each in workers if each.rank not in absent]
    outcomes, seconds = run(present, timeout=timeout)
    named = workers[0].named(absent)
    for outcome in outcomes:
        assert isinstance(outcome, TimeoutError), outcome
        assert f" waited {timeout:g} s, but {named} did not start" in str(outcome)
        assert "another program" not in str(outcome)
    assert timeout <= max(seconds) < timeout + 6 * PACE
    shown = capsys.readouterr()
    line = rf"^tf_adasum: waiting for {re.escape(named)} \(\d+ of {timeout:g} s\)\."
    assert re.search(line, shown.err, re.MULTILINE)
    assert shown.out == "", "the program's own"


@pytest.mark.parametrize(
    ("hosts", "here", "is_wrong"),
    [
        (["a", "b", "c"], {"c"}, True),
        (["a", "b", "c"], {"b", "c"}, False),
        (["a", "b", "c"], set(), False),  # behind address translation
        (["127.0.0.1", "b"], {"127.0.0.1"}, False),  # every machine has it
    ],
)
def test_a_worker_on_the_host_of_another_one_is_named(monkeypatch, hosts, here, is_wrong):
    monkeypatch.setattr(messages.own_address, "is_here", lambda host: host in here)
    monkeypatch.setattr(messages.socket, "getaddrinfo", lambda *_: [])
    cluster = cluster_of(*(f"{host}:{n + 1}" for n, host in enumerate(hosts)), rank=1)
    wrong = messages.wrong_host(cluster)
    assert bool(wrong) == is_wrong
    if is_wrong:
        assert wrong.startswith("This process is worker 1 (b:2), but this machine is the host of")
        assert "worker 2 (c:3)" in wrong
        with pytest.raises(ValueError, match="This process is worker 1"):
            rendezvous.meet(cluster, SETTINGS, SOON)


@pytest.mark.parametrize(("host", "rank"), [("127.0.0.1", 0), ("", 0), ("", 1)])
def test_a_taken_port_is_named(host, rank):
    clusters, start = tasks(2), time.monotonic()
    message = rf"port of worker {rank} \(127.0.0.1:\d+\) is in use"
    with socket.create_server((host, clusters[0].host_and_port(rank)[1])):
        with pytest.raises(OSError, match=message) as raised:
            rendezvous.meet(clusters[rank], SETTINGS, SOON)
    assert time.monotonic() - start < 5 * PACE and not isinstance(raised.value, TimeoutError)
    assert run(clusters)[0] == [None, None]


# ---- other settings --------------------------------------------------------------------------


def test_a_worker_that_is_started_twice_is_named_before_the_others_come():
    first, second = tasks(2)
    outcomes, seconds = run([second, second, first], delays=[0.0, 0.5, 2 * PACE])
    assert outcomes[0] is None and outcomes[2] is None, outcomes
    assert isinstance(outcomes[1], OSError) and "TFA-205" in str(outcomes[1])
    assert 0.5 + seconds[1] < 2 * PACE, "before worker 0 is there"


def test_two_tasks_with_different_clusters():
    first, *others = tasks(3)[0].addresses
    clusters = [cluster_of(first, other, rank=rank) for rank, other in enumerate(others)]
    for outcome in run(clusters)[0]:
        assert isinstance(outcome, ValueError), outcome
        assert "started with the same cluster. Received: " in str(outcome)
        for rank, other in enumerate(others):
            assert f"{other} at index 1 of 2 on worker {rank} (" in str(outcome)


@pytest.mark.parametrize(("odd_one", "late"), [(0, None), (1, 2), (2, 0)])
@pytest.mark.parametrize("workers_of", [tasks, configs_of])
def test_all_of_three_tasks_report_that_one_has_different_settings(odd_one, late, workers_of):
    # A task that detects it and leaves must not leave the others to wait for it in vain: each has
    # to receive the difference, also one that starts half a second later.
    settings = [{"rule": "Sum()"} if rank == odd_one else {"rule": "Mean()"} for rank in range(3)]

    def part(own):
        time.sleep(0.5 if own.cluster.rank == late else 0)
        with contextlib.closing(own):
            own.meet(settings[own.cluster.rank], {}, SOON)

    for outcome in run(workers_of(3), then=part)[0]:
        assert isinstance(outcome, ValueError) and "with the same rule. Received" in str(outcome)
        assert "Mean() on worker" in str(outcome) and f"Sum() on worker {odd_one}" in str(outcome)


# ---- the server that takes a port over ----------------------------------------------------------

# What a gRPC server sends first: the frame of its settings, 24 bytes, for no stream.
SETTINGS_FRAME = bytes([0, 0, 24, 4, 0, 0, 0, 0, 0]) + bytes(24)


def test_waits_for_a_server_and_takes_nothing_else_for_one():
    greetings, seen = [b"", b"\n", b'{"rank": 0}\n', SETTINGS_FRAME], []

    def serve():
        for greeting in greetings:
            with listener.accept()[0] as connection:
                seen.append(greeting)
                connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        ports.wait_for_server(f"127.0.0.1:{listener.getsockname()[1]}", timeout=SOON)
    assert seen == greetings
