"""What workers, and unauthenticated clients, may send to worker 0, and worker 0 to workers."""

import contextlib
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.joining_workers import assert_together, configs_of, impatient, run  # noqa: F401 - a fixture
from support.rendezvous_tasks import SOON, cluster_of, connected, program_at

from tf_adasum.cluster import coordinator, handshake, joining, listener
from tf_adasum.cluster.handshake import Hello, ProtocolError
from tf_adasum.cluster.secret import Secret

pytestmark = [pytest.mark.version_independent, pytest.mark.usefixtures("impatient")]


# ---- addresses -----------------------------------------------------------------------------------


def list_of(own, *members, given=""):
    """The list that worker 0 makes of these: (announced, called at, worker 0's end, its peer)."""
    made = coordinator.Coordinator.__new__(coordinator.Coordinator)
    made._config = joining.RendezvousConfig(own, 0, len(members) + 1, "a test")
    made._own = Hello(0, "0" * 16, {}, {"host": given, "port": 7000})
    made._members = {}
    for rank, (host, called, end, peer, *is_given) in enumerate(members, 1):
        payload = {"host": host, "port": 7000 + rank, "coordinator": called}
        theirs = Hello(rank, "0" * 16, {}, {**payload, "is_given": bool(is_given)})
        connection = types.SimpleNamespace(
            getsockname=lambda end=end: (end, 1), getpeername=lambda peer=peer: (peer, 1)
        )
        made._members[rank] = coordinator._member(theirs, connection)
    return made._all_addresses()


LOCAL = ("127.0.0.1", "a", "127.0.1.1", "127.0.0.1")
REMOTE = ("10.0.0.2", "a", "10.0.0.1", "10.0.0.2")
BY_NUMBER = ("10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    ("own", "members", "hosts"),
    [
        # An own name that is a loopback address on its machine is none on others.
        ("a:1", [LOCAL, REMOTE], ["a", "a", "10.0.0.2"]),
        ("localhost:1", [LOCAL, REMOTE], ["a", "a", "10.0.0.2"]),
        ("127.0.1.1:1", [LOCAL, BY_NUMBER], ["10.0.0.1", "10.0.0.1", "10.0.0.2"]),
        # Those of worker 0's machine by the name of worker 0, whichever way they came.
        ("a:1", [("10.0.0.1", "a", "10.0.0.1", "10.0.0.1"), REMOTE], ["a", "a", "10.0.0.2"]),
        # All interfaces are no address.
        ("0.0.0.0:1", [("10.0.0.2", "0.0.0.0", "10.0.0.1", "10.0.0.2")], ["10.0.0.1", "10.0.0.2"]),
        ("0.0.0.0:1", [("127.0.0.1", "0.0.0.0", *["127.0.0.1"] * 2)], ["127.0.0.1"] * 2),
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
)
def test_the_addresses_that_workers_get(own, members, hosts):
    expected = [f"{host}:{7000 + rank}" for rank, host in enumerate(hosts)]
    assert list_of(own, *members) == expected


def test_worker_0_may_set_its_address():
    found = list_of("a:1", LOCAL, REMOTE, given="10.1.0.1")
    assert found == ["10.1.0.1:7000", "10.1.0.1:7001", "10.0.0.2:7002"]


# ---- callers -------------------------------------------------------------------------------------


def call_as(config, *, settings=None, **payload):
    """Call worker 0 as this worker; return the response of worker 0."""
    own_settings = {coordinator.WORKERS: config.num_workers, "tf_adasum": joining.__version__}
    payload = {
        "host": "127.0.0.1",
        "port": 9,
        "coordinator": "127.0.0.1",
        "patience": 0.0,
        **payload,
    }
    own = Hello(config.rank, "a" * 16, {**own_settings, **(settings or {})}, payload)
    with connected(cluster_of(config.coordinator)) as connection:
        return handshake.call(connection, own, Secret()).payload["response"]


@contextlib.contextmanager
def while_worker_0_waits(configs, *, timeout=SOON):
    """Run worker 0 in a thread; yield the list that gets its outcome after the block."""
    outcomes = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, configs[:1], timeout=timeout)
        yield outcomes
        outcomes += waiting.result(2 * SOON)[0]


def test_a_worker_that_starts_again_replaces_itself():
    configs = configs_of(3)
    with while_worker_0_waits(configs) as outcomes:
        assert call_as(configs[1]) == {"missing": [2]}
        outcomes += run(configs[1:])[0]
    assert "127.0.0.1:9" not in assert_together(outcomes, 3)


def test_another_release_is_an_error_on_all():
    configs = configs_of(2)
    with while_worker_0_waits(configs) as outcomes:
        response = call_as(configs[1], settings={"tf_adasum": "9.9"})
    (error,) = outcomes
    assert isinstance(error, ValueError) and response["wrong"] == str(error)
    assert "the same tf_adasum. Received: " in str(error)
    assert "9.9 on worker 1 (127.0.0.1:9)" in str(error)


WRONG = {
    "host": [
        *("a.b.c", 7, "0.0.0.0", "::", "::ffff:0.0.0.0"),
        *("fe80::1%\x1b[31m", "fe80::1%a\nb", "fe80::1%" + "a" * 65),
    ],
    "port": [0, 1 << 16, True, "80"],
    "coordinator": ["a" * 300, ["a"], "a b", "a\x1b[31m", "a\u202eb"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_caller_that_makes_no_sense_is_no_worker(name):
    configs = configs_of(2)
    with while_worker_0_waits(configs) as outcomes:
        for value in WRONG[name]:
            with pytest.raises((ProtocolError, EOFError, OSError)):
                call_as(configs[1], **{name: value})
        outcomes += run(configs[1:])[0]
    assert_together(outcomes, 2)


@pytest.mark.parametrize("patience", [-1.0, 1e300, "a", None, True])
def test_no_patience_holds_worker_0_s_answer_for_long(patience):
    configs = configs_of(3)
    with while_worker_0_waits(configs, timeout=1):
        since = time.monotonic()
        response = call_as(configs[1], patience=patience)
        waited = time.monotonic() - since
    assert waited < 8 and (response.get("missing") == [2] or response["is_late"])


def test_silent_callers_do_not_end_the_calls_of_workers_that_wait(monkeypatch):
    monkeypatch.setattr(listener, "MOST_UNAUTHENTICATED", 4)
    monkeypatch.setattr(coordinator, "_SECONDS_TO_HOLD", float(SOON))
    is_in, take_in = threading.Event(), coordinator.Coordinator._add_member
    monkeypatch.setattr(
        coordinator.Coordinator, "_add_member", lambda *rest: take_in(*rest) or is_in.set()
    )
    configs = configs_of(4)
    with (
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(1) as pool,
        while_worker_0_waits(configs) as outcomes,
    ):
        held = pool.submit(call_as, configs[1], patience=60.0, port=10)
        assert is_in.wait(SOON)
        for _ in range(20):
            stack.enter_context(connected(cluster_of(configs[0].coordinator)))
        outcomes += run(configs[2:])[0]
    (found,) = {outcome.addresses for outcome in outcomes}
    assert held.result() == {"addresses": list(found)} and found[1] == "127.0.0.1:10"


# ---- what worker 0 may send ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "response",
    [
        {"missing": [None, "a", 2]},
        {"missing": [], "addresses": 3},
        {"missing": [2], "addresses": ["127.0.0.1:1"]},
        {"missing": 7, "addresses": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]},
        {"missing": [2], "addresses": ["a", "b", "c"]},
        {"missing": [2], "wrong": {"a": "b"}},
        ["response"],
        None,
    ],
)
def test_responses_that_make_no_sense_end_no_worker(response):
    configs = configs_of(3)
    own = Hello(0, "0" * 16, {}, {"response": response})

    def answer(connection, done):
        with contextlib.suppress(ProtocolError):
            handshake.answer(connection, 0, lambda _: own, Secret())

    with program_at(cluster_of(configs[0].coordinator), answer):
        ((outcome,), _) = run(configs[1:2], timeout=0.5)
    assert type(outcome) is TimeoutError, outcome
