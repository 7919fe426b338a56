"""Worker 0's decisions, without connections."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.fuzzing import fuzz_settings
from support.rendezvous_tasks import SETTINGS

from tf_adasum.cluster import start_round
from tf_adasum.cluster.members import Member
from tf_adasum.cluster.rendezvous import WORKERS
from tf_adasum.cluster.start_round import HAS_RESULT, StartRound, error_of
from tf_adasum.cluster.tasks import cluster_to_join
from tf_adasum.errors import WorkerLostError

ENDS = "127.0.0.1", "127.0.0.1"


class Decisions:
    """Worker 0 of a job, and the keys that it has set."""

    def __init__(self, count, job="", own="a:1", given=""):
        cluster = cluster_to_join(own, 0, count, "a test")
        common = {WORKERS: count, "tf_adasum": "1.0"}
        of_0 = {"cluster": common, "host": given, "port": 7000, "job": job}
        self.made = StartRound(cluster, "0/" + "0" * 16, of_0)
        self.common, self.keys, self.now = common, {}, 0.0

    def join(self, rank, run="a", ends=ENDS, **data):
        """Let a worker join, unless `data` is wrong; then decide."""
        value = {"host": ends[1], "port": 7000 + rank, "coordinator": "a"}
        value |= {"cluster": self.common, "job": "", **data}
        self.made.changed(f"{rank}/{run * 16}", value, ends)
        self.decide()

    def begin(self):
        """Let worker 0 send its settings."""
        self.made.begin(SETTINGS, {"of": 0})
        self.decide()

    def meet(self, rank, run="a", **data):
        """Let a worker that has joined send its settings."""
        value = {"cluster": self.common, "settings": SETTINGS, **data}
        self.made.changed(f"{rank}/{run * 16}", value, ENDS)
        self.decide()

    def read(self, rank, run="a"):
        """Let a worker confirm that it has read the result."""
        self.made.changed(f"{rank}/{run * 16}", HAS_RESULT, ENDS)

    def leave(self, rank, run="a"):
        """Let the session of a worker end; then decide."""
        self.made.changed(f"{rank}/{run * 16}", None, ENDS)
        self.decide()

    def decide(self, seconds=0.0):
        self.now += seconds
        self.keys |= self.made.decide(self.now)

    @property
    def wrong(self):
        return self.keys.get("result", {}).get("wrong", "")


# ---- addresses -----------------------------------------------------------------------------------


def list_of(own, *members, given=""):
    """The list that worker 0 makes of these: (announced, called at, worker 0's end, its peer)."""
    made = Decisions(len(members) + 1, own=own, given=given)
    for rank, (host, called, *ends, is_given) in enumerate(members, 1):
        made.join(rank, host=host, coordinator=called, ends=tuple(ends), is_given=is_given)
    assert made.keys["addresses"] == made.made.cluster.addresses
    return list(made.made.cluster.addresses)


LOCAL = ("127.0.0.1", "a", "127.0.1.1", "127.0.0.1", False)
REMOTE = ("10.0.0.2", "a", "10.0.0.1", "10.0.0.2", False)
BY_NUMBER = ("10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.2", False)


@pytest.mark.parametrize(
    ("own", "members", "hosts"),
    [
        # An own name that is a loopback address on its machine is none on others.
        ("a:1", [LOCAL, REMOTE], ["a", "a", "10.0.0.2"]),
        ("localhost:1", [LOCAL, REMOTE], ["a", "a", "10.0.0.2"]),
        ("127.0.1.1:1", [LOCAL, BY_NUMBER], ["10.0.0.1", "10.0.0.1", "10.0.0.2"]),
        # Those of worker 0's machine by the name of worker 0, whichever way they came.
        ("a:1", [("10.0.0.1", "a", "10.0.0.1", "10.0.0.1", False), REMOTE], ["a", "a", "10.0.0.2"]),
        # All interfaces are no address.
        (
            "0.0.0.0:1",
            [("10.0.0.2", "0.0.0.0", "10.0.0.1", "10.0.0.2", False)],
            ["10.0.0.1", "10.0.0.2"],
        ),
        ("0.0.0.0:1", [("127.0.0.1", "0.0.0.0", *["127.0.0.1"] * 2, False)], ["127.0.0.1"] * 2),
        # Others call worker 0 by several names.
        ("a:1", [REMOTE, BY_NUMBER], ["10.0.0.1", "10.0.0.2", "10.0.0.2"]),
        (
            "[fd00::1]:1",
            [("fd00::2", "fd00::1", "fd00::1", "fd00::2", False)],
            ["[fd00::1]", "[fd00::2]"],
        ),
        # Behind a translation of addresses its own word counts; it is not on worker 0's machine.
        ("a:1", [("192.168.1.2", "a", "10.0.0.1", "10.0.0.9", False)], ["a", "192.168.1.2"]),
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


# ---- who joins -----------------------------------------------------------------------------------


def test_the_names_of_missing_workers_are_updated_once_per_second():
    made = Decisions(200)
    made.decide()
    for rank in range(1, 190):
        made.join(rank)
    first = ", ".join(f"worker {n}" for n in range(1, 9))
    assert made.keys["missing"] == f"{first}, and 191 more"
    made.decide(1.0)
    assert made.keys["missing"].startswith("worker 190, ")


@pytest.mark.parametrize(
    ("rank", "data", "words"),
    [
        (
            1,
            {"cluster": {WORKERS: 3, "tf_adasum": "9.9\x1b"}},
            "9.9? on worker 1 (127.0.0.1:7001)",
        ),
        (1, {"cluster": {}}, "the same number of workers. Received: 3 on worker 0 (a:1), None on"),
        (3, {}, "from 0 to 2, because there are 3 workers. Received: worker 3 (127.0.0.1:7003)"),
        (-1, {}, "from 0 to 2, because there are 3 workers. Received: worker -1"),
        (0, {"port": 9}, "Two workers have the rank 0: one at a:1 and one at 127.0.0.1:9"),
    ],
)
def test_a_worker_that_does_not_fit_is_an_error_on_all(rank, data, words):
    made = Decisions(3)
    made.join(rank, **data)
    assert words in made.wrong and type(error_of(made.made.result)) is ValueError
    made.made.end("another error")
    assert words in made.made.result["wrong"]


def test_two_workers_with_one_address():
    made = Decisions(3)
    made.join(1, port=9)
    made.join(2, port=9)
    assert "Workers 1, 2 have the same address: a:9. On each" in made.wrong


def test_a_rank_that_is_none_is_refused_alone_after_all_have_joined():
    made = Decisions(2)
    made.join(1)
    made.join(5, "c")
    assert "from 0 to 1" in made.keys["refused/5/" + "c" * 16]["wrong"] and not made.wrong


def test_a_worker_of_another_job_is_refused_alone():
    made = Decisions(2, job="17.0")
    made.join(1, "b", job="18.0")
    wrong = made.keys["refused/1/" + "b" * 16]["wrong"]
    assert "That worker belongs to job 17.0, but this worker belongs to job 18.0." in wrong
    made.join(1)
    assert made.made.cluster.addresses


def test_a_silent_worker_whose_process_ends_is_lost():
    made = Decisions(3, job="17.0")
    made.join(1)
    made.join(1, "b", job="18.0")  # is refused, and the end of its process means nothing
    made.begin()
    made.decide()
    for run in "ba":
        assert not made.wrong
        made.made.silent("1/" + run * 16, ENDS)
        made.decide(60.0)
        made.leave(1, run)
        made.decide(start_round.LEASE_SECONDS - 0.1)
        assert not made.wrong
        made.decide(0.2)
    assert "worker 1 was lost while" in made.wrong


@pytest.mark.parametrize(
    ("kind", "error"), [("", ValueError), ("late", TimeoutError), ("lost", WorkerLostError)]
)
def test_the_kind_of_an_error(kind, error):
    made = Decisions(2)
    made.made.end("why", kind)
    made.decide()
    assert made.keys["result"] == {"wrong": "why", "kind": kind}
    assert type(error_of(made.keys["result"])) is error and str(error_of(made.made.result)) == "why"


def test_clients_without_the_secret_are_remembered_until_they_join():
    made = Decisions(3)
    for rank in (-1, 0, 1, 2, 3, 10**30):
        made.made.authentication_failed(rank)
    made.join(1)
    made.made.authentication_failed(1)
    assert made.made.unauthenticated == {2}


WRONG = {
    "host": [
        *("a.b.c", 7, "0.0.0.0", "::", "::ffff:0.0.0.0"),
        *("fe80::1%\x1b[31m", "fe80::1%a\nb", "fe80::1%" + "a" * 250),
    ],
    "port": [0, 1 << 16, True, "80"],
    "coordinator": ["a" * 300, ["a"], "a b", "a\x1b[31m", "a\u202eb"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_client_with_invalid_data_is_no_worker(name):
    valid = {"host": "127.0.0.1", "port": 9, "coordinator": "a", "cluster": {}}
    assert Member.parsed(valid, ENDS, True).port == 9
    for value in WRONG[name]:
        made = Decisions(2)
        with pytest.raises((ValueError, TypeError)):  # which end the connection
            made.join(1, **{name: value})
        assert made.made.missing() == [1]


@pytest.mark.parametrize("key", ["", "1", "1/2", "x/" + "a" * 16])
def test_keys_of_no_worker(key):
    made = Decisions(2)
    made.made.changed(key, {"host": "127.0.0.1"}, ENDS)
    made.made.silent(key, ENDS)
    made.made.changed(key, None, ENDS)
    assert made.made.missing() == [1]


# ---- random histories ----------------------------------------------------------------------------

RANKS, RUNS = st.sampled_from([1, 2]), st.sampled_from("abc")


class Histories(RuleBasedStateMachine):
    """Workers join, meet, end, are cut off and restart in any order, with a clock of the test.

    To worker 0, the session of a worker that is cut off ends as if the worker had ended. The worker
    joins again with the same run if its network is healed, and with another run if it is restarted.
    """

    def __init__(self):
        super().__init__()
        self.made = Decisions(3)
        self.live = {1: [], 2: []}  # runs with a session
        self.joined = {}  # the runs that have got the addresses, by their ranks
        self.met = set()  # ranks whose live session has sent the settings
        self.read_by = set()  # ranks and runs that have confirmed the result
        self.chosen, self.two_since, self.gone_since = None, {}, {}
        self.has_begun = self.has_given_up = False

    @property
    def waits_for_worker_0(self):
        """Whether all have joined, and worker 0 has not begun to compare the settings."""
        return bool(self.joined) and not self.has_begun

    def takes_part(self, rank, run):
        """Whether this run of a worker has not come later than another that has joined."""
        return self.joined.get(rank, run) == run

    def after(self):
        """Check what worker 0 decided."""
        result, now = self.made.made.result, self.made.now
        two = [rank for rank, runs in self.live.items() if len(runs) > 1 and not self.joined]
        self.two_since = {rank: self.two_since.get(rank, now) for rank in two}
        is_too_long = any(
            now > since + start_round._GRACE_SECONDS for since in self.two_since.values()
        )
        there = {rank for rank, runs in self.live.items() if runs}
        if not self.joined and not self.chosen and not is_too_long and not self.has_given_up:
            if all(len(runs) == 1 for runs in self.live.values()):
                self.joined = {rank: runs[0] for rank, runs in self.live.items()}
        assert bool(self.made.made.cluster.addresses) == bool(self.joined)
        gone = [
            rank
            for rank, run in self.joined.items()
            if self.has_begun and run not in self.live[rank]
        ]
        self.gone_since = {rank: self.gone_since.get(rank, now) for rank in gone}
        is_lost = any(now > since + start_round.LEASE_SECONDS for since in self.gone_since.values())
        has_succeeded = self.has_begun and self.met == {1, 2} and not self.has_given_up
        if self.chosen is None and result is not None:
            self.chosen = result
            errors = {"": is_too_long, "lost": is_lost, "late": self.has_given_up}
            assert errors[result["kind"]] if "wrong" in result else has_succeeded
            assert ("payload" in result) == has_succeeded
        assert result is self.chosen, "it is final"
        if not self.chosen:
            waits_for = [
                rank for rank in (1, 2) if rank not in (self.met if self.joined else there)
            ]
            assert self.made.made.missing() == [0] * self.waits_for_worker_0 + waits_for
        assert result is not None or not (has_succeeded or is_too_long or is_lost)

    @rule(rank=RANKS, run=RUNS)
    def join(self, rank, run):
        if run not in self.live[rank]:
            self.live[rank].append(run)
        if self.joined.get(rank) == run and not self.chosen:
            self.met.discard(rank)
        self.made.join(rank, run)
        self.after()

    @precondition(lambda self: self.waits_for_worker_0 and not self.chosen)
    @rule()
    def begin(self):
        self.has_begun = True
        self.made.begin()
        self.after()

    @precondition(lambda self: self.joined and not self.chosen)
    @rule(rank=RANKS)
    def meet(self, rank):
        if self.joined[rank] in self.live[rank]:
            self.met.add(rank)
            self.made.meet(rank, self.joined[rank])
            self.after()

    @rule(rank=RANKS, run=RUNS)
    def leave(self, rank, run):
        if run in self.live[rank]:
            self.live[rank].remove(run)
        if self.joined.get(rank) == run and not self.chosen:
            self.met.discard(rank)
        self.made.leave(rank, run)
        self.after()

    @rule(rank=RANKS, run=RUNS)
    def read(self, rank, run):
        if run in self.live[rank]:
            self.made.read(rank, run)
            if self.chosen:  # else it is too early
                self.read_by.add((rank, run))

    @rule(seconds=st.sampled_from([0.5, start_round.LEASE_SECONDS, start_round._GRACE_SECONDS]))
    def wait(self, seconds):
        self.made.decide(seconds + 0.1)
        self.after()

    @precondition(lambda self: self.made.now > 30.0)
    @rule()
    def give_up(self):
        self.has_given_up |= self.made.made.result is None
        self.made.made.end("why", "late")
        self.made.decide()
        self.after()

    @invariant()
    def other_runs_are_refused(self):
        for rank, runs in self.live.items() if self.joined else ():
            for each in "abc":
                refused = self.made.keys.get(f"refused/{rank}/{each * 16}")
                has_come_later = each in runs and each != self.joined[rank]
                assert bool(refused) == has_come_later

    @invariant()
    def all_have_read_the_result_if_the_runs_that_take_part_have(self):
        """After a timeout only those that are there have to."""
        if self.chosen:
            there = {
                rank
                for rank, runs in self.live.items()
                if any(self.takes_part(rank, run) for run in runs)
            }
            needed = there if self.chosen.get("kind") == "late" else {1, 2}
            read = {rank for rank, run in self.read_by if self.takes_part(rank, run)}
            assert self.made.made.has_informed_all() == read.issuperset(needed)

    def teardown(self):
        """If one run of each worker stays, the start ends."""
        for rank, runs in self.live.items():
            for each in runs[1:]:
                self.leave(rank, each)
            self.join(rank, (self.live[rank] or ["a"])[0])
        if self.waits_for_worker_0 and not self.chosen:
            self.begin()
        for rank in (1, 2):
            if self.joined and not self.chosen:
                self.join(rank, self.joined[rank])
                self.meet(rank)
        assert self.chosen


TestHistories = Histories.TestCase
TestHistories.settings = fuzz_settings(600)
