"""Who trains when hosts join, fail and are lost: random histories with a clock of the test."""

import dataclasses

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


LOST = limits.LOST_GRACE_SECONDS + limits.SECONDS_TO_REPORT
LOST_A, LOST_B = "+a 0.6 obey 1 -a obey 1", "+b 2.1 obey 1 -b obey 1"
TOO_FEW = "fewer hosts than the minimum, 2, were available for 60 s. Available: 0"
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
        # A host that does not stop its workers is left out, and joins when it has.
        (3, 0, f"-1 +new 0=143 {LOST - 1} 2=143 1", "BSB", "0 2 new"),
        (3, 0, f"-1 +new 0=143 {LOST} 2=143 obey 1", "BSBSB", "0 2 new"),
        # After each one that has joined and was lost, the next waits four times as long.
        (2, 0, f"{LOST_A} +b 1.9", "BSBSB", "0 1"),
        (2, 0, f"{LOST_A} {LOST_B} +c 7.9", "BSBSBSBSB", "0 1"),
        (2, 0, f"{LOST_A} {LOST_B} +c 8.1 obey 1", "BSBSBSBSBSB", "0 1 c"),
        # But not once one has stayed for a round.
        (2, 0, f"{LOST_A} +b 2.1 obey 1 -1 obey 1 +c 0.6 obey 1", "BSBSBSBSBSB", "0 b c"),
        # Too few hosts for too long.
        (2, 0, f"-1 obey {PATIENCE - 1} +new 1", "BSB", "0 new"),
        (2, 0, f"-1 obey {PATIENCE + 1}", "BSE", f"1 {TOO_FEW}"),
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
    job.play("9 +a 9 +b 9")
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
    job, before = Job(maximum=9), limits.MOST_SECONDS_BEFORE_FIRST_ROUND
    job.join("host0")
    for number in range(int(before / 5)):
        assert job.decisions == []
        job.play(f"+host{number + 1} -host{number} 5")
    assert isinstance(job.last, Begin)
