"""Which way all workers take after small exchanges: what is decided, and that all decide alike."""

import threading

import numpy as np
import pytest
from support import meshes

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.transport import library, selection, ucx_port
from tf_adasum.transport.selection import Attempt

SHARED, TCP = "shared memory", "TCP"


def attempt(way, milliseconds, failure=""):
    return Attempt(way, 0, "lo", failure, milliseconds / 1000)


@pytest.mark.parametrize(
    ("attempts", "stock", "transport", "expected", "why"),
    [
        ([(SHARED, 2), (TCP, 4)], 9, "auto", SHARED, "2 ms, TensorFlow's collectives: 9 ms"),
        ([(SHARED, 4), (TCP, 3)], 9, "auto", SHARED, "4 ms, TensorFlow's collectives: 9 ms"),
        ([(SHARED, 80), (TCP, 30)], 90, "auto", TCP, "shared memory is slower: 80 ms"),
        ([(SHARED, 0, "EPERM"), (TCP, 3)], 9, "auto", TCP, "shared memory fails: EPERM"),
        ([(SHARED, 8), (TCP, 9)], 5, "auto", None, "slower: 8 ms, TensorFlow's collectives: 5 ms"),
        ([(SHARED, 8), (TCP, 9)], 5, "ucx", SHARED, "5 ms; the collectives are faster here"),
        ([(SHARED, 0, "a"), (TCP, 0, "b")], 5, "ucx", None, "shared memory fails: a; TCP fails: b"),
    ],
)
def test_the_choice(attempts, stock, transport, expected, why):
    best, said = selection.chosen([attempt(*each) for each in attempts], stock / 1000, transport)
    assert (best and best.way) == expected
    assert why in said


@pytest.mark.parametrize(
    ("workers", "expected"), [(2, 2**21), (8, 2**21), (64, 2**18), (1024, 2**16)]
)
def test_more_workers_send_each_other_less(workers, expected):
    assert selection.large(workers) == expected


def cluster_of(rank, workers=2):
    names = tuple(f"worker {number}" for number in range(workers))
    return Cluster(tuple(f"127.0.0.1:{1 + number}" for number in range(workers)), names, rank)


def on_workers(
    transport, workers=2, devices=lambda rank: ["CPU:0"], is_monitored=lambda rank: True
):
    """Results, or errors, of threads that are the workers, by rank."""
    barrier, rows, results = threading.Barrier(workers), [None] * workers, [None] * workers

    def work(rank):
        def gather(own):
            rows[rank] = own
            barrier.wait(30)
            of_all = np.stack(rows)
            barrier.wait(30)
            return of_all

        try:
            results[rank] = selection.select(
                cluster_of(rank, workers), transport, devices(rank), gather, is_monitored(rank)
            )
        except library.Unavailable as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


class Fake:
    """Functions of a UCX, of which some fail on worker 1."""

    version = "1"

    def __init__(self, fails=(), seconds=0.001):
        self.fails, self.seconds, self.closed, self.made = fails, seconds, [], []
        self._lock = threading.Lock()

    def rehearse(self, transports, device):
        self._fail("rehearse", transports)

    def create(self, transports, device):
        with self._lock:
            self.made.append(transports)
            return len(self.made) - 1

    def address(self, number):
        return b"an address"[: 5 + number]

    def connect(self, number, addresses):
        assert len(addresses) == 2 and all(each.startswith(b"an ad") for each in addresses)
        self._fail("connect", self.made[number])

    def attempt(self, mesh, rank, workers, number, size, seconds):
        if rank:
            self._fail("attempt", self.made[mesh])
        return self.seconds

    def close(self, mesh):
        self.closed.append(mesh)

    def _fail(self, where, transports):
        if (where, transports) in self.fails:
            raise library.Unavailable("Operation not permitted")


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(selection, "_choices", {})
    monkeypatch.delenv(selection.VARIABLE, raising=False)

    def use(**options):
        functions = Fake(**options)
        monkeypatch.setattr(library, "opened", lambda: functions)
        return functions

    return use


@pytest.mark.parametrize("where", ["connect", "attempt"])
def test_a_way_that_fails_on_one_worker_is_taken_by_none(fake, where):
    functions = fake(fails=[(where, selection.SHARED_MEMORY)], seconds=1e-6)
    first, second = on_workers("auto")
    assert first.summary == second.summary
    assert first.summary.startswith("UCX 1 (TCP; lo): ")
    assert f"shared memory fails: {'worker 1 (127.0.0.1:2): ' * (where == 'attempt')}" in (
        first.summary
    )
    for each in (first, second):
        assert functions.made[each.mesh.number] == selection.TCP
        assert each.mesh.channel == first.mesh.channel
    assert (
        sorted(functions.made[number] for number in functions.closed)
        == [selection.SHARED_MEMORY] * 2
    )


def test_where_no_way_works(fake):
    functions = fake(fails=[("attempt", selection.SHARED_MEMORY), ("attempt", selection.TCP)])
    for each in on_workers("auto"):
        assert each.mesh is None
        assert each.summary.startswith("TensorFlow's collectives (UCX over shared memory fails: ")
    assert len(functions.closed) == 4
    for error in on_workers("ucx"):
        assert "TCP fails: worker 1 (127.0.0.1:2): Operation not permitted" in str(error)


def test_what_is_slower_is_not_taken(fake):
    fake(seconds=9.0)
    for each in on_workers("auto"):
        assert each.mesh is None and "UCX over shared memory is slower: 9000 ms" in each.summary
    for each in on_workers("ucx"):
        assert each.mesh is not None and "collectives are faster here" in each.summary


def test_strategies_share_the_connections_until_they_are_ended(fake):
    functions = fake(seconds=1e-6)
    first, again = on_workers("auto"), on_workers("auto")
    for one, other in zip(first, again, strict=True):
        assert one.mesh.number == other.mesh.number and one.mesh.channel < other.mesh.channel
    assert len(functions.made) == 4
    del selection._choices[cluster_of(1), "auto"]  # ended on one worker alone
    for one, other in zip(first, on_workers("auto"), strict=True):
        assert one.mesh.number != other.mesh.number
    assert len(functions.made) == 8


def test_what_the_user_has_chosen_for_ucx_is_the_only_way(fake, monkeypatch):
    functions = fake(seconds=1e-6)
    monkeypatch.setenv(selection.VARIABLE, "tcp,self")
    for each in on_workers("auto"):
        assert each.summary.startswith("UCX 1 (UCX_TLS=tcp,self; lo): ")
    assert len(functions.made) == 2


def test_where_one_worker_has_no_ucx(fake, monkeypatch):
    functions = fake(seconds=1e-6)
    for transport in ("auto", "ucx"):
        of_workers = iter(["libucp.so.0: no such file", ""])
        monkeypatch.setattr(selection, "_missing", lambda texts=of_workers: next(texts))
        for found in on_workers(transport):
            said = str(found) if transport == "ucx" else found.summary
            assert "UCX is not used: worker" in said
            assert "libucp.so.0: no such file" in said
            assert ("make UCX work on all of them" in said) == (transport == "ucx")
            assert transport == "ucx" or found.mesh is None
    assert functions.made == []


def test_one_worker_with_a_gpu(fake):
    functions = fake()
    found = on_workers("auto", devices=lambda rank: ["GPU:0" if rank else "CPU:0"])
    for each in found:
        assert each.summary == (
            "TensorFlow's collectives (UCX is not used: worker 1 (127.0.0.1:2): gradients on "
            "GPUs are sent over NCCL (devices GPU:0))"
        )
    assert functions.made == []


def test_a_worker_whose_watch_is_off(fake):
    functions = fake(seconds=1e-6)
    for each in on_workers("auto", is_monitored=lambda rank: rank == 0):
        assert each.mesh is None
        assert (
            "UCX is not used: worker 1 (127.0.0.1:2): without the failure detector" in each.summary
        )
    assert functions.made == []
    for each in on_workers("ucx", is_monitored=lambda rank: rank == 0):
        assert each.mesh is not None, "it was asked for"


def test_more_devices_than_tags_have_bits_for(fake):
    functions = fake()
    for each in on_workers("auto", devices=lambda rank: ["CPU:0"] * 257):
        assert "at most 65536 replicas and 256 devices per worker" in each.summary
    assert functions.made == []


def test_an_interface_that_the_system_does_not_tell(fake, monkeypatch):
    fake()
    monkeypatch.setattr(selection.interface, "of", _refused)
    for each in on_workers("auto"):
        assert each.mesh is None and "Operation not permitted" in each.summary


def _refused(cluster):
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("workers", [2, 3])
def test_ucx_itself(monkeypatch, workers):
    meshes.opened()
    monkeypatch.setattr(selection, "_choices", {})
    before = ucx_port.listening()
    found = on_workers("ucx", workers)
    assert ucx_port.listening() == before, "nobody can connect any more"
    assert len({each.summary for each in found}) == 1
    assert len({each.mesh.number for each in found}) == workers
    assert found[0].summary.startswith(f"UCX {library.opened().version} (")


def test_ucx_itself_over_tcp(monkeypatch):
    """The port to which a worker is connected is one that the health monitor can try."""
    meshes.opened()
    monkeypatch.setattr(selection, "_choices", {})
    monkeypatch.setenv(selection.VARIABLE, "tcp,self")
    ends = [each.ends for each in on_workers("ucx")]
    assert any(ends), "one of two has called the other"
    for rank, of_rank in enumerate(ends):
        for other, end in of_rank.items():
            assert (other, end[0]) == (1 - rank, "127.0.0.1")


def places(memories, networks, free=100):
    """What worker after worker finds when it looks where it is."""
    found = [(*each, free) for each in zip(memories, networks, strict=True)]
    return lambda: found.pop()


@pytest.mark.parametrize(
    ("place", "made", "words"),
    [
        (
            places([1, 1], [7, 7]),
            [selection.SHARED_MEMORY, selection.TCP],
            "UCX 1 (shared memory; lo)",
        ),
        (places([1, 2], [7, 7]), [selection.TCP], "UCX 1 (TCP; lo)"),
        (
            places([1, 1], [7, 8]),
            [selection.TCP],
            "no shared memory: worker 0 (127.0.0.1:1), worker 1",
        ),
        (
            places([1, 1], [7, 7], free=16),
            [selection.SINGLE_COPIES, selection.TCP],
            "/dev/shm has 16 MiB free, and 2 workers need 26 MiB",
        ),
    ],
)
def test_the_ways_that_are_tried(fake, monkeypatch, place, made, words):
    functions = fake(seconds=1e-6)
    monkeypatch.setattr(selection.shared_memory, "place", place)
    for each in on_workers("auto"):
        assert words in each.summary
    assert set(functions.made) == set(made)


def test_a_way_that_crashes_is_not_made(fake):
    functions = fake(fails=[("rehearse", selection.SHARED_MEMORY)], seconds=1e-6)
    for each in on_workers("auto"):
        assert each.summary.startswith("UCX 1 (TCP; lo)")
    assert set(functions.made) == {selection.TCP}


def test_ucx_itself_waits_no_longer_than_asked():
    functions, numbers = meshes.opened(), meshes.connected(2, selection.TCP)
    with pytest.raises(library.Unavailable, match="an exchange did not end in time"):
        functions.attempt(numbers[0], 0, 2, 0, 1000, 0.2)
    for number in numbers:
        functions.close(number)
