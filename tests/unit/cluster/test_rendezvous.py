"""The rendezvous: which tasks meet, and what is reported of those that do not."""

import contextlib
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import joining_workers
from support.joining_workers import configs_of
from support.pace import PACE
from support.rendezvous_tasks import (
    SETTINGS,
    SOON,
    cluster_of,
    needs_ipv6,
    run,
    run_in_threads,
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


def listed(count, part):
    """Let workers that know all addresses take part; return the results and seconds."""
    clusters = tasks(count)
    return run_in_threads(lambda place: part(Participant(clusters[place], {})), count)


def joined(count, part):
    """Let workers take part that have joined through worker 0."""
    return joining_workers.run(configs_of(count), then=part)


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("way", [listed, joined])
def test_a_task_that_ends_after_it_was_heard_is_named(monkeypatch, gone, way):
    """It is known to task 0, or is task 0, and all wait for a fourth one that never comes."""
    monkeypatch.setattr(rendezvous, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(start_round, "LEASE_SECONDS", 1.0)
    is_over = threading.Semaphore(0)

    def part(own):
        rank = own.cluster.rank
        if rank == 3:
            assert is_over.acquire(timeout=SOON) and is_over.acquire(timeout=SOON)
        elif rank == gone:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(own.meet, SETTINGS, {}, 4)
                time.sleep(1.5)
                own.close()
                waiting.exception()
        else:
            try:
                own.meet(SETTINGS, {}, 30)
            finally:
                is_over.release()
                own.close()

    outcomes, seconds = way(4, part)
    for rank in {0, 1, 2} - {gone}:
        assert isinstance(outcomes[rank], WorkerLostError), outcomes[rank]
        text = str(outcomes[rank])
        assert text.startswith(f"worker {gone} (127.0.0.1:")
        assert ") was lost while the workers" in text
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

    outcomes, seconds = joining_workers.run(configs, then=part)
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


@pytest.mark.parametrize(("count", "absent"), [(2, [1]), (3, [0]), (4, [1, 3])])
def test_missing_tasks_are_named(count, absent):
    clusters = tasks(count)
    present = [cluster for cluster in clusters if cluster.rank not in absent]
    outcomes, seconds = run(present, timeout=0.5)
    for outcome, waited in zip(outcomes, seconds, strict=True):
        assert isinstance(outcome, TimeoutError)
        assert re.match(r"worker \d \(.*\) waited 0.5 s, but ", str(outcome))
        assert f"but {clusters[0].named(absent)} did not start" in str(outcome)
        assert "another program" not in str(outcome)
        assert 0.5 <= waited < 5 * PACE


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


def test_of_long_clusters_the_first_difference_is_named():
    one = {"cluster": [f"node{n}.example:2222" for n in range(200)]}
    other = {"cluster": [*one["cluster"][:150], "node7.example:1", *one["cluster"][151:]]}
    outcomes, _ = run(tasks(2), settings=[one, other])
    for outcome in outcomes:
        assert "Received: node150.example:2222 at index 150 of 200 on worker 0" in str(outcome)
        assert "node7.example:1 at index 150 of 200 on worker 1" in str(outcome)
        assert len(str(outcome)) < 500


def test_two_tasks_with_different_clusters():
    first, second = tasks(2)
    longer = cluster_of(*second.addresses, "127.0.0.1:9", rank=1)
    for outcome in run([first, longer], timeout=2)[0]:
        assert isinstance(outcome, ValueError) and "with the same cluster" in str(outcome)


@pytest.mark.parametrize(("odd_one", "late"), [(0, None), (1, 2), (2, 0)])
@pytest.mark.parametrize("way", [listed, joined])
def test_all_of_three_tasks_report_that_one_has_different_settings(odd_one, late, way):
    # A task that detects it and leaves must not leave the others to wait for it in vain: each has
    # to receive the difference, also one that starts half a second later.
    settings = [{"rule": "Sum()"} if rank == odd_one else {"rule": "Mean()"} for rank in range(3)]

    def part(own):
        time.sleep(0.5 if own.cluster.rank == late else 0)
        with contextlib.closing(own):
            own.meet(settings[own.cluster.rank], {}, 5)

    for outcome in way(3, part)[0]:
        assert isinstance(outcome, ValueError) and "with the same rule. Received" in str(outcome)
        assert "Mean() on worker" in str(outcome) and f"Sum() on worker {odd_one}" in str(outcome)


# ---- tasks that task 0 has brought together ------------------------------------------------------


def test_all_of_them_report_who_is_missing():
    has_ended = threading.Semaphore(0)

    def part(own):
        if own.cluster.rank == 3:
            assert all(has_ended.acquire(timeout=SOON) for _ in range(3))
            return
        try:
            own.meet(SETTINGS, {}, 1.5)
        finally:
            has_ended.release()

    outcomes, _ = joined(4, part)
    for outcome in outcomes[:3]:
        assert isinstance(outcome, TimeoutError)
        assert "but worker 3 (127.0.0.1:" in str(outcome) and "did not start" in str(outcome)


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
        ports.wait_for_server(f"127.0.0.1:{listener.getsockname()[1]}", timeout=30)
    assert seen == greetings
