"""Launchers of hosts that join and leave, with tiny workers that do not import TensorFlow."""

import contextlib
import dataclasses
import os
import signal
import socket
import sys
import time

import pytest
from support.launching import LIMIT, eventually, is_running, running

from tf_adasum.cluster import ports
from tf_adasum.launch import job_leader
from tf_adasum.launch.membership import Host, Membership

# A worker notes its pid, round, rank and cluster in a file, and stays until the file "finish" is
# there. After SIGTERM, it makes a backup for TEST_SAVES seconds, and exits with status 75.
WORKER = """
environment = os.environ.get

def save(*_):
    time.sleep(float(environment("TEST_SAVES", "0")))
    open(os.path.join(sys.argv[1], "saved." + environment("TEST_HOST")), "w").close()
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
print("runs", file=sys.stderr)
names = "TF_ADASUM_RESTART_COUNT", "TF_ADASUM_RANK", "TF_ADASUM_WORLD_SIZE", "TF_ADASUM_COORDINATOR"
config = json.loads(environment("TF_CONFIG", "{}"))
rank = environment("TF_ADASUM_RANK") or config["task"]["index"]
size = environment("TF_ADASUM_WORLD_SIZE") or len(config["cluster"]["worker"])
folder, name = sys.argv[1], environment("TEST_HOST")
path = os.path.join(folder, f"{environment('TF_ADASUM_RESTART_COUNT')}.{rank}.{size}.{name}")
open(path + ".new", "w").write(f"{os.getpid()} {environment('TF_ADASUM_COORDINATOR')}")
os.rename(path + ".new", path)
while not os.path.exists(os.path.join(folder, "finish")):
    if os.path.exists(os.path.join(folder, f"finish.{name}")):
        sys.exit(0)
    if os.path.exists(os.path.join(folder, f"fail.{name}")):
        os.remove(os.path.join(folder, f"fail.{name}"))
        sys.exit(7)
    time.sleep(0.02)
"""


@pytest.fixture
def job(script, tmp_path):
    """A job with no hosts."""
    with ports.free_ports(1) as (port,):
        pass
    with contextlib.ExitStack() as stack:
        yield Job(script(WORKER), tmp_path, port, stack)


class Job:
    """Launchers on this machine, each as one host."""

    def __init__(self, path, folder, port, stack):
        self.path, self.folder, self.stack = path, folder, stack
        self.coordinator = f"127.0.0.1:{port}"
        self.launchers = {}

    def join(self, name, *arguments, nnodes="1:3", closed=None, **environment):
        """Start the launcher of a host with one worker, with a file descriptor closed."""
        options = ["--nnodes", nnodes, "-n", "1", "--coordinator", self.coordinator, *arguments]
        closing = [] if closed is None else ["sh", "-c", f'exec "$@" {closed}>&-', "sh"]
        self.launchers[name] = self.stack.enter_context(
            running(
                *options,
                environment.pop("path", self.path),
                self.folder,
                command=[*closing, sys.executable, "-m", "tf_adasum.launch"],
                env={**os.environ, "TF_ADASUM_SECRET": "key", "TEST_HOST": name, **environment},
                stderr=open(self.folder / f"{name}.log", "w"),
            )
        )

    def files(self, number, count):
        """The workers of a round with so many hosts: from the host's name to the file."""
        found = self.folder.glob(f"{number - 1}.*.{count}.*")
        return {path.name.split(".")[3]: path for path in found if path.suffix != ".new"}

    def wait_for(self, number, *names):
        """Wait for a round of these hosts; return the ranks of their workers."""
        eventually(lambda: self.files(number, len(names)).keys() >= set(names), 2 * LIMIT)
        return {
            name: int(self.files(number, len(names))[name].name.split(".")[1]) for name in names
        }

    def begin_with_two(self, *arguments, **environment):
        """Start the coordinator's launcher "a" and another one, "b", and wait for their round."""
        self.join("a", *arguments, nnodes="2:2")
        self.wait_for_text("a", "waiting for")
        self.join("b", nnodes="2:2", **environment)
        self.wait_for(1, "a", "b")

    def wait_for_text(self, name, text):
        """Wait until a launcher has printed a text."""
        eventually(lambda: text in (self.folder / f"{name}.log").read_text())

    def finish(self):
        (self.folder / "finish").touch()

    def end_of(self, name):
        """The exit status of a launcher, and its messages."""
        return self.launchers[name].wait(LIMIT), (self.folder / f"{name}.log").read_text()


def test_a_host_is_lost_and_another_joins(job):
    """Worker 0 stays on the coordinator's host; nothing of an earlier round is left."""
    for name in "ab":
        job.join(name)
        job.wait_for_text(name, "waiting for")
    job.join("c")
    assert job.wait_for(1, *"abc")["a"] == 0
    pids = [int(path.read_text().split()[0]) for path in job.files(1, 3).values()]
    job.launchers["b"].kill()
    assert job.wait_for(2, "a", "c")["a"] == 0
    assert not any(map(is_running, pids))
    job.join("d")
    assert job.wait_for(3, "a", "c", "d")["a"] == 0
    coordinators = {path.read_text().split()[1] for path in job.files(3, 3).values()}
    assert len(coordinators) == 1 and coordinators != {job.coordinator}
    job.finish()
    for name in "acd":
        assert job.end_of(name)[0] == 0
    log = job.end_of("a")[1]
    assert f"because host {socket.gethostname()} was lost" in log
    assert f"because host {socket.gethostname()} can join" in log
    assert "round 3: 3 workers on 3 hosts" in log


def test_a_host_that_is_asked_to_stop_leaves_after_a_backup(job):
    job.join("a", nnodes="1:2", TEST_SAVES="3")
    job.wait_for_text("a", "waiting for")
    job.join("b", nnodes="1:2")
    job.wait_for(1, "a", "b")
    job.launchers["b"].send_signal(signal.SIGTERM)
    assert job.end_of("b")[0] == 75
    job.wait_for(2, "a")  # on one host: without a coordinator
    assert (job.folder / "saved.a").exists()
    job.finish()
    status, log = job.end_of("a")
    assert status == 0 and "leaves: its launcher received SIGTERM" in log


def test_a_host_that_cannot_start_workers_does_not_disturb_the_others(job):
    job.join("a", "--max-restarts", "1", nnodes="1:2")
    job.wait_for(1, "a")
    job.join("b", "--log-dir", job.folder / "a.log")  # not a folder
    assert job.end_of("b")[0] == 2
    job.finish()
    status, log = job.end_of("a")
    assert status == 0 and "round 2" not in log


def test_a_launcher_whose_workers_have_finished_needs_no_coordinator(job):
    """Its connection was lost in the last seconds of the job."""
    job.begin_with_two(TF_ADASUM_START_TIMEOUT="3")
    job.launchers["b"].send_signal(signal.SIGSTOP)
    job.finish()
    assert job.end_of("a")[0] == 0
    job.launchers["b"].send_signal(signal.SIGCONT)
    status, log = job.end_of("b")
    assert status == 0
    assert "it lost the coordinator, after its workers had exited with status 0." in log


def test_a_host_that_has_finished_joins_again_if_worker_0_has_not(job):
    """The coordinator's launcher is killed while worker 0 saves the model."""
    job.begin_with_two()
    (job.folder / "finish.b").touch()
    job.wait_for_text("b", "waiting for the next round")
    job.launchers["a"].kill()
    (job.folder / "finish.b").unlink()
    for path in job.files(1, 2).values():
        path.unlink()
    job.join("a", nnodes="2:2")
    job.wait_for(1, "a", "b")
    job.finish()
    assert [job.end_of(name)[0] for name in "ab"] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_without_the_coordinators_launcher_all_end(job, number):
    job.begin_with_two(TF_ADASUM_START_TIMEOUT="3")
    pid = int(job.files(1, 2)["b"].read_text().split()[0])
    job.launchers["a"].send_signal(number)
    status, log = job.end_of("b")
    assert not is_running(pid)
    if number == signal.SIGTERM:
        assert status == 75 and "received SIGTERM" in log
    else:
        assert status == 1 and "the launcher at 127.0.0.1" in log
        assert "this host leaves the job, because it lost the coordinator. The launcher at" in log


def test_the_coordinators_launcher_may_be_suspended(job):
    """For longer than a lease: the hosts meet again, and train."""
    job.begin_with_two()
    for path in job.files(1, 2).values():
        path.unlink()
    job.launchers["a"].send_signal(signal.SIGSTOP)
    job.wait_for_text("b", "was lost")
    time.sleep(2)  # until the lease of the coordinator's own session has ended, too
    job.launchers["a"].send_signal(signal.SIGCONT)
    # The coordinator's own session may continue, or end. Then the rounds are counted from 1 again.
    rounds = []
    eventually(
        lambda: rounds.extend(n for n in (1, 2, 3) if job.files(n, 2).keys() >= {*"ab"}) or rounds,
        2 * LIMIT,
    )
    assert job.wait_for(rounds[0], "a", "b")["a"] == 0
    job.finish()
    assert [job.end_of(name)[0] for name in "ab"] == [0, 0]


def test_a_signal_or_the_timeout_ends_the_wait_for_the_coordinator(job):
    elsewhere = ["--coordinator", "192.0.2.1:1"]  # of a network for documentation
    job.join("a", *elsewhere)
    job.wait_for_text("a", "connecting to the launcher at 192.0.2.1:1")
    job.launchers["a"].send_signal(signal.SIGTERM)
    assert job.end_of("a")[0] == 128 + signal.SIGTERM
    job.join("b", *elsewhere, "--timeout", "1")
    assert job.end_of("b")[0] == 124


def test_the_timeout_of_the_coordinators_launcher_ends_the_job(job):
    job.begin_with_two("--timeout", "12")
    assert job.end_of("a")[0] == 75  # the workers have made a backup
    status, log = job.end_of("b")
    assert status and "reached its --timeout" in log


def test_another_job_with_the_same_address_and_another_secret_are_refused(job, script):
    job.join("a", nnodes="2:2")
    job.wait_for_text("a", "waiting for")
    refused = {
        "path": (script(WORKER, "other.py"), "its script path or arguments differ"),
        "TF_ADASUM_SECRET": ("other", "the same secret"),
    }
    for name, (value, said) in refused.items():
        job.join(name, nnodes="2:2", **{name: value})
        status, log = job.end_of(name)
        assert status == 2 and said in log
    job.join("b", nnodes="2:2")
    job.wait_for(1, "a", "b")


def test_the_port_may_become_free_later(job):
    """Another program uses it, or the launcher of an earlier job that is about to end."""
    host, _, port = job.coordinator.rpartition(":")
    with socket.create_server((host, int(port))):
        job.join("a", nnodes="1:1")
        job.wait_for_text("a", "connecting to")
        time.sleep(1.0)
    job.wait_for_text("a", "round 1: 1 worker on 1 host")
    job.wait_for_text("a", "[worker 0] runs")  # with its number, because hosts may join


def test_a_launcher_that_reached_another_store_decides_nothing():
    """Its host listens at an address that another host also has."""
    leader = job_leader.JobLeader(Membership(1, 1, 0, "own", 1.0), "own", "job", "a:1")
    other = {"job": "job", "host": dataclasses.asdict(Host("other", "b", 1))}
    leader.changed("other", other, ("", ""))
    assert leader.decide(0.0) == {"leader": "own"} and leader.decide(1e6) == {}
    leader.changed("own", {**other, "host": dataclasses.asdict(Host("own", "a", 1))}, ("", ""))
    with contextlib.closing(leader):
        assert leader.decide(1e6)["round/1"]["hosts"][0]["id"] == "own"


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_not_replaced_by_a_socket(job, closed):
    """The launcher's output must not go into a connection."""
    job.join("a", nnodes="1:1", closed=closed)
    job.wait_for(1, "a")
    opened = os.readlink(f"/proc/{job.launchers['a'].pid}/fd/{closed}")
    job.finish()
    assert job.end_of("a")[0] == 0 and opened == os.devnull
