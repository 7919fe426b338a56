"""The choice of a transport after small exchanges, which is the same on all workers."""

import functools
import threading

import pytest
from support import meshes
from support.fake_workers import results_on_workers, run_on_workers
from support.rendezvous_tasks import cluster_of

from tf_adasum.transport import library, selection, ucx_port
from tf_adasum.workers.workers import texts_of_all


def cluster_on(rank, count=2):
    return cluster_of(*(f"127.0.0.1:{1 + number}" for number in range(count)), rank=rank)


def on_workers(transport, count=2, devices=lambda rank: ["CPU:0"], run=results_on_workers):
    """Return the choice of each worker."""

    def choice(workers):
        cluster = cluster_on(workers.rank, count)
        share = functools.partial(texts_of_all, gather=workers.gather)
        return selection.select(cluster, transport, devices(workers.rank), share)

    return run(count, choice)


class Fake:
    """Functions of a UCX, of which some fail on worker 1."""

    version = "1"

    def __init__(self, fails=()):
        self.fails, self.closed, self.made = fails, [], []
        self._lock = threading.Lock()

    def probe_in_subprocess(self, transports, device):
        self._fail("probe_in_subprocess", transports)

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

    def close(self, mesh):
        self.closed.append(mesh)

    def _fail(self, where, transports):
        if (where, transports) in self.fails:
            raise library.UcxUnavailableError("Operation not permitted")


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(selection, "_choices", {})
    monkeypatch.delenv(selection.VARIABLE, raising=False)

    def use(**options):
        functions = Fake(**options)
        monkeypatch.setattr(library, "opened", lambda: functions)
        return functions

    return use


@pytest.mark.parametrize(
    ("where", "failure", "meshes_closed"),
    [
        ("probe_in_subprocess", "shared memory fails: ", 0),
        ("connect", "shared memory fails: ", 2),
        ("attempt", "shared memory fails: worker 1 (127.0.0.1:2): ", 2),
    ],
)
def test_a_way_that_fails_on_one_worker_is_taken_by_none(fake, where, failure, meshes_closed):
    functions = fake(fails=[(where, selection.SHARED_MEMORY)])
    found = on_workers("auto")
    (summary,) = {each.summary for each in found}
    assert summary.startswith("UCX 1 (TCP; lo): ") and failure in summary
    assert len({each.mesh.channel for each in found}) == 1
    assert {functions.made[each.mesh.number] for each in found} == {selection.TCP}
    closed = [functions.made[number] for number in functions.closed]
    assert closed == [selection.SHARED_MEMORY] * meshes_closed


def test_shared_memory_without_single_copies_is_not_used(fake, monkeypatch):
    functions = fake()
    why = "it may not copy from the memory of worker 1"
    monkeypatch.setattr(selection.shared_memory, "forbidden_copy", lambda cluster, marks: why)
    for each in on_workers("auto"):
        assert each.summary.startswith(f"UCX 1 (TCP; lo): UCX over shared memory fails: {why}")
    assert sorted(functions.made) == sorted([selection.SHARED_MEMORY, selection.TCP] * 2)
    monkeypatch.setenv(selection.VARIABLE, "posix,tcp,self")  # a user's choice is not judged
    monkeypatch.setattr(selection, "_choices", {})
    assert {each.summary for each in on_workers("auto")} == {"UCX 1 (UCX_TLS=posix,tcp,self; lo)"}
    assert len(functions.made) == 6, "it is the only candidate"


def test_strategies_share_the_connections_until_they_are_ended(fake):
    functions = fake()
    first, again = on_workers("auto"), on_workers("auto")
    for one, other in zip(first, again, strict=True):
        assert one.mesh.number == other.mesh.number and one.mesh.channel < other.mesh.channel
    assert len(functions.made) == 2
    del selection._choices[cluster_on(1), "auto"]  # ended on one worker alone
    for one, other in zip(first, on_workers("auto"), strict=True):
        assert one.mesh.number != other.mesh.number
    assert len(functions.made) == 4


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"devices": lambda rank: ["GPU:0" if rank else "CPU:0"]}, "NCCL (devices GPU:0)"),
        ({"devices": lambda rank: [f"CPU:{n}" for n in range(1 + 256 * rank)]}, "256 devices"),
    ],
    ids=["a GPU", "too many devices"],
)
def test_what_ucx_cannot_do_on_one_worker_is_done_by_none(fake, options, why):
    functions = fake()
    for each in on_workers("auto", **options):
        assert each.mesh is None and why in each.summary
        not_used = "TensorFlow's collectives (UCX is not used: worker 1 (127.0.0.1:2): "
        assert each.summary.startswith(not_used)
    assert functions.made == []


@pytest.mark.parametrize(
    ("memories", "networks", "free", "made", "words"),
    [
        ([1, 1], [7, 7], 100, {selection.SHARED_MEMORY}, "UCX 1 (shared memory; lo)"),
        ([1, 2], [7, 7], 100, {selection.TCP}, "UCX 1 (TCP; lo)"),
        ([1, 1], [7, 8], 100, {selection.TCP}, "no shared memory: worker 0 (127.0.0.1:1), wor"),
        (
            *([1, 1], [7, 7], 16, {selection.SINGLE_COPIES}),
            "/dev/shm has 16 MiB free, and 2 workers need 26 MiB",
        ),
    ],
)
def test_the_ways_that_are_tried(fake, monkeypatch, memories, networks, free, made, words):
    functions = fake()
    places = [(*each, free) for each in zip(memories, networks, strict=True)]
    mark = selection.shared_memory.own_mark()
    monkeypatch.setattr(selection.shared_memory, "own_mark", lambda: mark)
    monkeypatch.setattr(selection.shared_memory, "facts", places.pop)
    for each in on_workers("auto"):
        assert words in each.summary
    assert set(functions.made) == made


# ---- UCX itself ----------------------------------------------------------------------------------


@pytest.fixture
def ucx(monkeypatch):
    monkeypatch.setattr(selection, "_choices", {})
    return meshes.opened()


@pytest.mark.parametrize("workers", [2, 3])
def test_ucx_itself(ucx, workers):
    before = ucx_port.listening()
    found = on_workers("ucx", workers)
    assert ucx_port.listening() == before, "nobody can connect any more"
    (summary,) = {each.summary for each in found}
    assert len({each.mesh.number for each in found}) == workers
    assert summary.startswith(f"UCX {ucx.version} (")


def test_ucx_itself_over_tcp(ucx, monkeypatch):
    """The port to which a worker is connected is one that the health monitor can try."""
    monkeypatch.setenv(selection.VARIABLE, "tcp,self")
    ends = [each.endpoints for each in on_workers("ucx")]
    assert any(ends), "one of two has called the other"
    for rank, of_rank in enumerate(ends):
        for other, end in of_rank.items():
            assert (other, end[0]) == (1 - rank, "127.0.0.1")


def test_ucx_itself_waits_no_longer_than_asked(ucx):
    numbers = meshes.connected(2, selection.TCP)
    with pytest.raises(library.UcxUnavailableError, match="an exchange did not end in time"):
        ucx.attempt(numbers[0], 0, 2, 0, 1000, 0.2)
    for number in numbers:
        ucx.close(number)


def test_where_no_way_works(fake):
    functions = fake(fails=[("attempt", selection.SHARED_MEMORY), ("attempt", selection.TCP)])
    for each in on_workers("auto"):
        assert each.mesh is None
        assert each.summary.startswith("TensorFlow's collectives (UCX over shared memory fails: ")
    assert len(functions.closed) == 4
    for error in on_workers("ucx", run=run_on_workers):
        assert isinstance(error, library.UcxUnavailableError)
        assert "TCP fails: worker 1 (127.0.0.1:2): Operation not permitted" in str(error)
        assert "make UCX work on all of them" in str(error)
