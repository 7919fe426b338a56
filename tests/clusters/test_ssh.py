"""Workers on several hosts that the launcher starts over ssh: a server is started here."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from support import launching, sshd
from support.launching import LIMIT, eventually, is_running, pids_in

pytestmark = pytest.mark.version_independent

HOSTS = ["--hosts", "127.0.0.1:1,127.0.0.2:2"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment in which the launcher uses the server."""
    if reason := sshd.reason_to_skip():
        pytest.skip(f"no ssh server can be started here: {reason}")
    servers = sshd.Servers(tmp_path_factory.mktemp("sshd"))
    yield {**os.environ, "TF_ADASUM_SSH": servers.command}
    servers.close()


@pytest.fixture
def sleeping(tmp_path):
    """The arguments of workers that sleep with a child each, and the folder of their pids."""
    program = tmp_path / "worker.py"
    program.write_text("import os, signal, subprocess, sys, time\n" + launching.SLEEP_WITH_CHILD)
    pids = tmp_path / "pids"
    pids.mkdir()
    return [str(program), str(pids)], pids


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.parametrize(
    ("number", "to", "code"),
    [
        (signal.SIGINT, "launcher", 130),
        (signal.SIGTERM, "launcher", 143),
        (signal.SIGKILL, "launcher", -9),
        (signal.SIGKILL, "ssh", 137),
    ],
)
def test_workers_end_with_the_launcher_and_its_connections(environment, sleeping, number, to, code):
    arguments, pids = sleeping
    with launching.running(*HOSTS, *arguments, env=environment, stderr=subprocess.PIPE) as launcher:
        eventually(lambda: len(pids_in(pids)) == 6)
        target = launcher.pid if to == "launcher" else children_of(launcher.pid)[1]
        os.kill(target, number)
        _, errors = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == (code), errors
    eventually(lambda: not any(map(is_running, pids_in(pids))))


def test_a_host_that_does_not_answer_is_named_within_10_seconds(environment, sleeping):
    arguments, pids = sleeping
    with socket.create_server(("127.0.0.3", 0)) as silent:
        command = f"{environment['TF_ADASUM_SSH']} -p {silent.getsockname()[1]}"
        begin = time.monotonic()
        own = {**environment, "TF_ADASUM_SSH": command}
        ended = launching.run("--hosts", "127.0.0.3:1", *arguments, env=own)
    assert time.monotonic() - begin < 10
    assert ended.returncode == 2 and not pids_in(pids)
    said = r"cannot be reached by ssh: 127\.0\.0\.3 \(Connection .*timed out.*\)"
    assert re.search(said, ended.stderr), ended.stderr


def test_a_host_that_asks_for_a_password_is_refused_at_once(environment, sleeping):
    arguments, pids = sleeping
    command = f"{environment['TF_ADASUM_SSH']} -o PubkeyAuthentication=no"
    ended = launching.run(*HOSTS, *arguments, env={**environment, "TF_ADASUM_SSH": command})
    assert ended.returncode == 2 and not pids_in(pids)
    for host in ("127.0.0.1", "127.0.0.2"):
        assert f"{host}: Permission denied (publickey" in ended.stderr


@pytest.mark.slow
def test_hosts_train_as_the_launcher(training, assert_as_launched, environment, tmp_path):
    command = [sys.executable, "-m", "tf_adasum.launch", "--hosts", "127.0.0.1:1,127.0.0.2:3"]
    ssh = environment["TF_ADASUM_SSH"]
    said = training.run(*command, *training.command[1:], tmp_path, TF_ADASUM_SSH=ssh)
    assert "tf_adasum: 4 workers, 4 replicas over " in said
    assert_as_launched(tmp_path)
