"""The rendezvous, with threads as tasks and ports that the system gives."""

import contextlib
import json
import socket
import sys
import threading
import time
import traceback

import hypothesis
import hypothesis.strategies as st
import pytest
from support.fuzzing import cases
from support.worker_group import free_ports

from tf_adasum.cluster import json_lines, rendezvous
from tf_adasum.cluster.rendezvous import meet
from tf_adasum.cluster.tasks import Cluster

TERMS = {"rule": "Adasum()", "devices per worker": 2}

# Seconds within which tasks that are all there have met, on a machine that is busy with other
# things: a round takes 0.1 s, a silent program holds it up for 2 s.
SOON = 15


def tasks(count):
    """For each task the cluster as it sees it."""
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    names = tuple(f"worker {rank}" for rank in range(count))
    return [Cluster(addresses, names, rank) for rank in range(count)]


def port_of(cluster):
    return int(cluster.addresses[cluster.rank].rpartition(":")[2])


def run(clusters, *, timeout=SOON, delays=None, terms=None, limit=2 * SOON):
    """Lets tasks meet, a thread each; returns what each raised (None if they met), and seconds."""
    outcomes, seconds = [None] * len(clusters), [None] * len(clusters)
    together = threading.Barrier(len(clusters))

    def take_part(place, cluster):
        together.wait()
        time.sleep(delays[place] if delays else 0)
        start = time.monotonic()
        try:
            meet(cluster, terms[place] if terms else TERMS, timeout)
        except Exception as error:
            outcomes[place] = error
        seconds[place] = time.monotonic() - start

    threads = [
        threading.Thread(target=take_part, args=task, daemon=True) for task in enumerate(clusters)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    frames = sys._current_frames()
    stacks = ["".join(traceback.format_stack(frames[t.ident])) for t in threads if t.is_alive()]
    assert None not in seconds, f"still waiting after {limit} s:\n" + "\n".join(stacks)
    return outcomes, seconds


@contextlib.contextmanager
def program_at(cluster, behave):
    """Another program on the port of a task; `behave(connection)` serves each of its callers."""
    done = threading.Event()

    def serve(connection):
        with connection, contextlib.suppress(OSError):
            behave(connection, done)

    def accept():
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port_of(cluster)))
        listener.listen()
        listener.settimeout(0.1)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


# ---- tasks that meet ---------------------------------------------------------------------------


def test_a_cluster_of_one():
    assert run(tasks(1))[0] == [None]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
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


def test_a_host_that_does_not_exist_is_named(monkeypatch):
    def unknown(*arguments, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    (cluster,) = tasks(1)
    other = "no-such-host.invalid:1"
    cluster = Cluster((*cluster.addresses, other), ("worker 0", "worker 1"), 0)
    ((outcome,), _) = run([cluster], timeout=0.3)
    assert isinstance(outcome, TimeoutError) and f"worker 1 ({other}) did not" in str(outcome)


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
ENDS_EARLY = {"closes", "reads and closes", "a huge line", "a huge line with an end", "endless"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_program_at_a_peers_port(program):
    first, second = tasks(2)
    with program_at(second, PROGRAMS[program]):
        ((outcome,), (waited,)) = run([first], timeout=0.2, limit=5)
    assert isinstance(outcome, TimeoutError)
    assert f"{second.named([1])} did not start" in str(outcome)
    assert waited < 4, "0.2 s, and 2 s for an answer"
    # A connection that is closed with something unread is reset: no telling who was there.
    if program not in ENDS_EARLY:
        assert f"Another program answers at the address of {second.named([1])}" in str(outcome)


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


@contextlib.contextmanager
def callers_of(clusters, behave, count=1):
    """Programs that call on the tasks as soon as these listen."""
    done = threading.Event()

    def call(cluster):
        while not done.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port_of(cluster)), timeout=1) as connection,
            ):
                return behave(connection, done)
            time.sleep(0.001)  # before the tasks call on each other a second time

    threads = [threading.Thread(target=call, args=(c,)) for c in clusters for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


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


# ---- garbage -------------------------------------------------------------------------------------

GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"[" * 70_000, b"1" * 70_000, b"\xff\xfe", b"{}", b"null", b"\n", b""]),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["rank", "terms", "rule", ""]), inner, max_size=3),
        ),
        max_leaves=8,
    ).map(lambda message: json.dumps(message).encode()),
)


@cases(200)
@hypothesis.given(line=GARBAGE, ends=st.booleans())
def test_garbage_is_no_introduction_or_one_of_json(line, ends):
    """Whatever a program sends: no other exception than in time, and no rank that is none."""
    mine, theirs = socket.socketpair()
    cluster = Cluster(("a:1", "b:2", "c:3"), ("worker 0", "worker 1", "worker 2"), 1)
    met = object.__new__(rendezvous._Introductions)  # without its port
    met._cluster, met._terms_of, met.offers = cluster, {}, {}
    met._introduction = {"rank": 1, "terms": TERMS}
    with mine, theirs:
        sending = threading.Thread(target=lambda: (theirs.sendall(line), theirs.close()))
        line = line + b"\n" if ends else line
        sending.start()
        mine.settimeout(SOON)
        introduction = json_lines.receive(mine, SOON)
        while mine.recv(1 << 16):  # what is behind the longest line, so that all can be sent
            pass
        sending.join()
    assert introduction is None or isinstance(introduction, dict)
    rank = met._remember(introduction)
    assert rank in (None, 0, 2)
    assert met.missing() == [other for other in (0, 2) if other != rank]
    if rank is None:
        met.check_terms()
        return
    assert isinstance(introduction["terms"], dict)
    with contextlib.suppress(ValueError):
        met.check_terms()


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
