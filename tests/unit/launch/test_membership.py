"""Who trains when hosts join, fail and are lost: random histories with a clock of the test."""

import dataclasses
import itertools

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.fuzzing import fuzz_settings

from tf_adasum.launch import membership as limits
from tf_adasum.launch.membership import Begin, Host, Membership, Stop

LEADER = "0"
PATIENCE = 60.0
MINIMUM, MAXIMUM, RESTARTS = 2, 4, 3


class Job:
    """A `Membership` with its hosts, and what it has decided.

    Attributes:
        hosts: from the id of each connected host to the host, in joining order.
        running: from the id of each host whose workers run to the round.
        ended: the `End`; None before it.
        stopping, partly_ended: the last rounds that were to stop, and in which workers of a host
            have ended.
    """

    def __init__(self, minimum=MINIMUM, maximum=MAXIMUM, max_restarts=RESTARTS):
        self.membership = Membership(minimum, maximum, max_restarts, LEADER, PATIENCE)
        self.hosts, self.running, self.decisions = {}, {}, []
        self.now, self.ended, self.stopping, self.partly_ended = 100.0, None, 0, 0
        self.has_finished = self.has_failed = False  # worker 0, any worker; in the last round
        self.join(LEADER)

    def join(self, name):
        self.hosts[name] = Host(name, name, 1)
        self.decide()

    def lose(self, name):
        del self.hosts[name]
        self.running.pop(name, None)
        self.decide()

    def finish(self, name, status=0, has_own_failure=False):
        """The workers of a host end."""
        self.has_finished |= name == LEADER and status == 0
        self.has_failed |= has_own_failure
        self.partly_ended = max(self.partly_ended, self.running[name])
        self.hosts[name] = dataclasses.replace(
            self.hosts[name],
            ended=self.running.pop(name),
            status=status,
            has_own_failure=has_own_failure,
        )
        self.decide()

    def wait(self, seconds):
        self.now += seconds
        self.decide()

    def decide(self):
        decision = self.membership.decide(list(self.hosts.values()), self.now)
        if decision is None:
            return
        self.decisions.append(decision)
        assert self.ended is None
        if isinstance(decision, Begin):
            # A host gets no round while its workers run, and a complete job is not repeated.
            begun = {host.id: decision.round for host in decision.hosts}
            assert not begun.keys() & self.running.keys()
            assert self.has_failed or not self.has_finished
            self.has_finished = self.has_failed = False
            self.running |= begun
            self.now += limits.HEARTBEAT_SECONDS  # each round lasts at least as long
            assert self.running.keys() <= self.hosts.keys()
        elif isinstance(decision, Stop):
            assert decision.round in self.running.values()
            self.stopping = decision.round
        else:
            self.ended = decision

    def obey(self):
        """The workers of the round that stops end on all hosts."""
        for name in list(self.running):
            self.finish(name, 143)

    def play(self, history):
        """Join (+NAME), lose (-NAME), finish (NAME=STATUS, with "!" by itself), obey, or wait."""
        for word in history.split():
            name, is_end, status = word.rstrip("!").partition("=")
            if is_end:
                self.finish(name, int(status), word.endswith("!"))
            elif word == "obey":
                self.obey()
            elif word[0] in "+-":
                {"+": self.join, "-": self.lose}[word[0]](word[1:])
            else:
                self.wait(float(word))

    @property
    def last(self):
        return self.decisions[-1]


class Histories(RuleBasedStateMachine):
    """Hosts come and go, workers fail and finish, in any order."""

    def __init__(self):
        super().__init__()
        self.job, self.count = Job(), 0

    def name(self, among, data):
        return data.draw(st.sampled_from(sorted(among)))

    @property
    def others(self):
        return self.job.hosts.keys() - {LEADER}

    @precondition(lambda self: len(self.job.hosts) < 7)
    @rule()
    def join(self):
        self.count += 1
        self.job.join(f"host{self.count}")

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def lose(self, data):
        self.job.lose(self.name(self.others, data))

    @precondition(lambda self: self.job.running)
    @rule(data=st.data(), status=st.sampled_from([0, 1, 75, 143]), has_own_failure=st.booleans())
    def finish(self, data, status, has_own_failure):
        name = self.name(self.job.running, data)
        self.job.finish(name, status, has_own_failure and status == 1)

    @rule(seconds=st.sampled_from([0.1, 1.0, 11.0]))
    def wait(self, seconds):
        self.job.wait(seconds)

    @invariant()
    def rounds_have_the_right_size(self):
        for decision in self.job.decisions:
            if isinstance(decision, Begin):
                assert MINIMUM <= len(decision.hosts) <= MAXIMUM
                assert decision.hosts[0].id == LEADER

    @invariant()
    def rounds_are_numbered(self):
        begun = [each.round for each in self.job.decisions if isinstance(each, Begin)]
        assert begun == list(range(1, len(begun) + 1))

    def teardown(self):
        """The job neither waits for ever, nor stops workers that can train."""
        job = self.job
        for _ in range(8):  # enough hosts join; workers obey, and do not go on without others
            if {job.stopping, job.partly_ended} & {*job.running.values()}:
                job.obey()
            while len(job.hosts) < MINIMUM:
                self.join()
            job.wait(11.0)
        assert job.ended or len(job.running) >= MINIMUM


TestHistories = Histories.TestCase
TestHistories.settings = fuzz_settings(200)


def begun(count, **options):
    """A job whose first round runs on so many hosts."""
    job = Job(**options)
    for number in range(1, count):
        job.join(str(number))
    job.wait(limits.SECONDS_BEFORE_FIRST_ROUND)
    assert isinstance(job.last, Begin) and len(job.last.hosts) == count
    return job


FAILED = "a worker of host {} failed, and --max-restarts is {}".format


@pytest.mark.parametrize(
    ("hosts", "restarts", "history", "kinds", "end"),
    [
        (4, 0, "+spare 100 -1 obey 0.1", "BSB", "0 2 3 spare"),
        # Failures of workers are counted, and name the host.
        (2, 0, "1=7! obey", "BSE", f"7 {FAILED(1, 0)}"),
        (2, 1, "1=7! obey 1 1=7! obey", "BSBSE", f"7 {FAILED(1, 1)}"),
        # A connection broke, so a worker failed; then the others are stopped.
        (2, 0, "1=1 0=143", "BSE", f"1 {FAILED(1, 0)}"),
        # These were asked to end; with the same arguments, these would fail again.
        (2, 3, "0=75 1=75", "BSE", "75 a worker received a signal"),
        (2, 3, "0=2! 1=2!", "BSE", "2 a worker of host 0 failed"),
        # Worker 0 saves the model: the job is complete with it, and not before.
        (3, 0, "0=0 -2 1=1", "BE", "0 "),
        (3, 0, "1=0 -2 0=1 1", "BB", "0 1"),
        (3, 0, "1=0 -2 +new 10 0=0", "BE", "0 "),
        (2, 0, "+new -1 30 0=0", "BSE", "0 "),
        (2, 0, "1=0 0=137! 1", "BE", f"137 {FAILED(0, 0)}"),
        (2, 1, "1=0 0=137! 1", "BB", "0 1"),
        (2, 0, "1=0 -1 0=1!", "BE", f"1 {FAILED(0, 0)}"),
    ],
)
def test_what_follows(hosts, restarts, history, kinds, end):
    job = begun(hosts, max_restarts=restarts)
    job.play(history)
    assert "".join(type(each).__name__[0] for each in job.decisions) == kinds
    if job.ended:
        assert f"{job.ended.status} {job.ended.reason}" == end
    else:
        assert [host.id for host in job.last.hosts] == end.split()


def test_the_first_round_waits_for_late_hosts_unless_all_are_there():
    job = Job()
    job.join("a")
    job.wait(limits.SECONDS_BEFORE_FIRST_ROUND - 1)
    job.join("b")
    job.wait(limits.SECONDS_BEFORE_FIRST_ROUND - 1)
    assert job.decisions == []
    job.join("c")
    assert job.last == Begin(1, tuple(job.hosts.values()))


def test_hosts_that_stop_for_a_host_that_leaves_can_make_a_backup():
    job = begun(3)
    job.hosts["1"] = dataclasses.replace(job.hosts["1"], leaving="received SIGTERM")
    job.finish("1", 75)
    assert job.last.grace == limits.BACKUP_GRACE_SECONDS and "1 leaves" in job.last.reason
    job.lose("1")  # it has ended, so nobody waits for it
    assert job.last.grace == limits.BACKUP_GRACE_SECONDS
    job.obey()
    job.wait(0.1)
    assert [host.id for host in job.last.hosts] == [LEADER, "2"]


def test_a_loss_shortens_a_stop_that_waits_for_a_backup():
    job = begun(3)
    job.play(f"+new {limits.SECONDS_BEFORE_JOINING}")
    assert job.last.grace == limits.BACKUP_GRACE_SECONDS >= 30
    job.lose("1")
    assert job.last.grace == limits.LOST_GRACE_SECONDS
    job.lose("2")
    assert len(job.decisions) == 3


def test_hosts_that_join_and_die_again_and_again_rarely_stop_the_others():
    job = begun(2)
    begin = job.now
    for number in range(2, 1000):
        if job.now > begin + 1800:
            break
        name = f"flapping{number}"
        job.join(name)
        for _ in range(20):  # it dies after 20 s, with or without a round
            job.wait(1.0)
            job.obey() if job.stopping in job.running.values() else None
        job.lose(name)
        job.obey() if job.stopping in job.running.values() else None
        job.wait(1.0)
    rounds = sum(isinstance(each, Begin) for each in job.decisions)
    assert rounds <= 12, "in half an hour, of 90 hosts that joined"


def test_hosts_join_at_once_again_when_a_joined_host_has_stayed():
    job = begun(2, maximum=9)
    for name, seconds in (("lost", 0.5), ("stays", 2.0), ("next", 2.0), ("last", 0.5)):
        job.join(name)
        job.wait(0.9 * seconds)
        assert isinstance(job.last, Begin)
        job.wait(0.2 * seconds)
        assert isinstance(job.last, Stop)
        job.obey()
        job.wait(1.0)
        assert name in job.running
        if name == "lost":
            job.lose(name)
            job.obey()
            job.wait(1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": -5},
        {"ended": "x"},
        {"name": 7},
        {"name": "\033[2J"},
        {"id": "other"},
        {"unknown": 1},
        {"status": True},
    ],
    ids=str,
)
def test_a_value_that_is_not_a_host_is_refused(changes):
    value = dataclasses.asdict(Host("own", "a", 1))
    assert Host.parsed(value, "own") == Host("own", "a", 1)
    with pytest.raises((TypeError, ValueError)):
        Host.parsed({**value, **changes}, "own")


def test_hosts_that_come_and_go_do_not_delay_the_first_round():
    job = Job(maximum=9)
    begin = job.now
    job.join("flapping0")
    for number in itertools.count(1):
        job.play(f"+flapping{number} -flapping{number - 1} {limits.SECONDS_BEFORE_FIRST_ROUND / 2}")
        if job.decisions:
            break
    assert isinstance(job.last, Begin)
    assert (
        job.now - begin
        <= limits.MOST_SECONDS_BEFORE_FIRST_ROUND + limits.SECONDS_BEFORE_FIRST_ROUND
    )


def test_a_host_that_does_not_stop_its_workers_is_left_out():
    job = begun(3)
    job.play(f"-1 0=143 {limits.LOST_GRACE_SECONDS + limits.SECONDS_TO_REPORT - 1}")
    assert isinstance(job.last, Stop)
    job.play("+new 1 5")
    assert [host.id for host in job.last.hosts] == [LEADER, "new"]
    job.play("2=143 1")  # now it can join
    assert isinstance(job.last, Stop) and "2" in job.last.reason


def test_too_few_hosts_for_too_long_end_the_job():
    job = begun(2)
    job.play(f"-1 obey {PATIENCE - 1}")
    assert job.ended is None
    job.wait(2)
    assert job.ended.status == 1 and "Available: 0" in job.ended.reason
