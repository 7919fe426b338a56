"""Workers on several hosts that the launcher starts over ssh: a server is started here."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from support import sshd
from support.launching import (
    LIMIT,
    SLEEP_WITH_CHILD,
    eventually,
    is_running,
    pids_in,
    run,
    running,
)

pytestmark = pytest.mark.one_stack

HOSTS = ["--hosts", "127.0.0.1:1,127.0.0.2:2"]
SECONDS = 400


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment in which the launcher uses the server."""
    reason = sshd.why_not()
    if reason:
        pytest.skip(f"no ssh server can be started here: {reason}")
    servers = sshd.Servers(tmp_path_factory.mktemp("sshd"))
    yield {**os.environ, "TF_ADASUM_SSH": servers.command}
    servers.close()


@pytest.fixture
def sleeping(tmp_path):
    """The arguments of workers that sleep with a child each, and the folder of their pids."""
    program = tmp_path / "worker.py"
    program.write_text("import os, signal, subprocess, sys, time\n" + SLEEP_WITH_CHILD)
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
        (signal.SIGKILL, "ssh", 255),
    ],
)
def test_workers_end_with_the_launcher_and_its_connections(environment, sleeping, number, to, code):
    arguments, pids = sleeping
    with running(*HOSTS, *arguments, env=environment, stderr=subprocess.PIPE) as launcher:
        eventually(lambda: len(pids_in(pids)) == 6)
        target = launcher.pid if to == "launcher" else children_of(launcher.pid)[1]
        os.kill(target, number)
        _, errors = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == (code if code != 255 else 128 + number), errors
    eventually(lambda: not any(map(is_running, pids_in(pids))))


def test_a_host_that_does_not_answer_is_named_within_10_seconds(environment, sleeping):
    arguments, pids = sleeping
    with socket.create_server(("127.0.0.3", 0)) as silent:
        command = f"{environment['TF_ADASUM_SSH']} -p {silent.getsockname()[1]}"
        begin = time.monotonic()
        ended = run(
            "--hosts", "127.0.0.3:1", *arguments, env={**environment, "TF_ADASUM_SSH": command}
        )
    assert time.monotonic() - begin < 10
    assert ended.returncode == 2 and not pids_in(pids)
    said = r"cannot be reached by ssh: 127\.0\.0\.3 \(Connection .*timed out.*\)"
    assert re.search(said, ended.stderr), ended.stderr


def test_a_host_that_asks_for_a_password_is_refused_at_once(environment, sleeping):
    arguments, pids = sleeping
    command = f"{environment['TF_ADASUM_SSH']} -o PubkeyAuthentication=no"
    ended = run(*HOSTS, *arguments, env={**environment, "TF_ADASUM_SSH": command})
    assert ended.returncode == 2 and not pids_in(pids)
    for host in ("127.0.0.1", "127.0.0.2"):
        assert f"{host}: Permission denied (publickey" in ended.stderr


@pytest.mark.slow
def test_hosts_train_as_the_launcher(training, environment, tmp_path):
    command = [sys.executable, "-m", "tf_adasum.launch", "--hosts", "127.0.0.1:1,127.0.0.2:3"]
    ended = subprocess.run(
        [*command, *training.command[1:], str(tmp_path)],
        env={**environment, **training.environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "tf_adasum: the environment (TF_ADASUM_COORDINATOR): 4 workers x 1" in ended.stderr
    training.assert_as_launched(tmp_path)
