"""What workers, and unauthenticated clients, may send to worker 0, and worker 0 to workers."""

import contextlib
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.joinings import assert_together, impatient, invitations, run  # noqa: F401 - a fixture
from support.meetings import SOON, cluster_of, connected, program_at

from tf_adasum.cluster import coordinator, introductions, joining, reception
from tf_adasum.cluster.introductions import Introduction, Stranger
from tf_adasum.cluster.secret import Secret

pytestmark = [pytest.mark.version_independent, pytest.mark.usefixtures("impatient")]


# ---- addresses -----------------------------------------------------------------------------------


def list_of(own, *arrivals, given=""):
    """The list that worker 0 makes of these: (announced, called at, worker 0's end, its peer)."""
    made = coordinator.Coordinator.__new__(coordinator.Coordinator)
    made._invitation = joining.Invitation(own, 0, len(arrivals) + 1, "a test")
    made._own = Introduction(0, "0" * 16, {}, {"host": given, "port": 7000})
    made._came = {}
    for rank, (host, called, end, peer, *is_given) in enumerate(arrivals, 1):
        offer = {"host": host, "port": 7000 + rank, "coordinator": called}
        theirs = Introduction(rank, "0" * 16, {}, {**offer, "is_given": bool(is_given)})
        connection = types.SimpleNamespace(
            getsockname=lambda end=end: (end, 1), getpeername=lambda peer=peer: (peer, 1)
        )
        made._came[rank] = coordinator._arrival(theirs, connection)
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
def test_the_addresses_that_workers_get(own, arrivals, hosts):
    expected = [f"{host}:{7000 + rank}" for rank, host in enumerate(hosts)]
    assert list_of(own, *arrivals) == expected


def test_worker_0_may_set_its_address():
    found = list_of("a:1", LOCAL, REMOTE, given="10.1.0.1")
    assert found == ["10.1.0.1:7000", "10.1.0.1:7001", "10.0.0.2:7002"]


# ---- callers -------------------------------------------------------------------------------------


def call_as(invitation, *, terms=None, **offer):
    """Call worker 0 as this worker; return the news of worker 0."""
    own_terms = {coordinator.WORKERS: invitation.num_workers, "tf_adasum": joining.__version__}
    offer = {"host": "127.0.0.1", "port": 9, "coordinator": "127.0.0.1", "patience": 0.0, **offer}
    own = Introduction(invitation.rank, "a" * 16, {**own_terms, **(terms or {})}, offer)
    with connected(cluster_of(invitation.coordinator)) as connection:
        return introductions.call(connection, own, Secret()).offer["news"]


@contextlib.contextmanager
def while_worker_0_waits(invited, *, timeout=SOON):
    """Run worker 0 in a thread; yield the list that gets its outcome after the block."""
    outcomes = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, invited[:1], timeout=timeout)
        yield outcomes
        outcomes += waiting.result(2 * SOON)[0]


def test_a_worker_that_starts_again_replaces_itself():
    invited = invitations(3)
    with while_worker_0_waits(invited) as outcomes:
        assert call_as(invited[1]) == {"missing": [2]}
        outcomes += run(invited[1:])[0]
    assert "127.0.0.1:9" not in assert_together(outcomes, 3)


def test_another_release_is_an_error_on_all():
    invited = invitations(2)
    with while_worker_0_waits(invited) as outcomes:
        news = call_as(invited[1], terms={"tf_adasum": "9.9"})
    (error,) = outcomes
    assert isinstance(error, ValueError) and news["wrong"] == str(error)
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
    invited = invitations(2)
    with while_worker_0_waits(invited) as outcomes:
        for value in WRONG[name]:
            with pytest.raises((Stranger, EOFError, OSError)):
                call_as(invited[1], **{name: value})
        outcomes += run(invited[1:])[0]
    assert_together(outcomes, 2)


@pytest.mark.parametrize("patience", [-1.0, 1e300, "a", None, True])
def test_no_patience_holds_worker_0_s_answer_for_long(patience):
    invited = invitations(3)
    with while_worker_0_waits(invited, timeout=1):
        since = time.monotonic()
        news = call_as(invited[1], patience=patience)
        waited = time.monotonic() - since
    assert waited < 8 and (news.get("missing") == [2] or news["is_late"])


def test_silent_callers_do_not_end_the_calls_of_workers_that_wait(monkeypatch):
    monkeypatch.setattr(reception, "MOST_STRANGERS", 4)
    monkeypatch.setattr(coordinator, "_SECONDS_TO_HOLD", float(SOON))
    is_in, take_in = threading.Event(), coordinator.Coordinator._take_in
    monkeypatch.setattr(
        coordinator.Coordinator, "_take_in", lambda *rest: take_in(*rest) or is_in.set()
    )
    invited = invitations(4)
    with (
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(1) as pool,
        while_worker_0_waits(invited) as outcomes,
    ):
        held = pool.submit(call_as, invited[1], patience=60.0, port=10)
        assert is_in.wait(SOON)
        for _ in range(20):
            stack.enter_context(connected(cluster_of(invited[0].coordinator)))
        outcomes += run(invited[2:])[0]
    (found,) = {outcome.addresses for outcome in outcomes}
    assert held.result() == {"addresses": list(found)} and found[1] == "127.0.0.1:10"


# ---- what worker 0 may send ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "news",
    [
        {"missing": [None, "a", 2]},
        {"missing": [], "addresses": 3},
        {"missing": [2], "addresses": ["127.0.0.1:1"]},
        {"missing": 7, "addresses": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]},
        {"missing": [2], "addresses": ["a", "b", "c"]},
        {"missing": [2], "wrong": {"a": "b"}},
        ["news"],
        None,
    ],
)
def test_news_that_make_no_sense_end_no_worker(news):
    invited = invitations(3)
    own = Introduction(0, "0" * 16, {}, {"news": news})

    def answer(connection, done):
        with contextlib.suppress(Stranger):
            introductions.answer(connection, 0, lambda _: own, Secret())

    with program_at(cluster_of(invited[0].coordinator), answer):
        ((outcome,), _) = run(invited[1:2], timeout=0.5)
    assert type(outcome) is TimeoutError, outcome
