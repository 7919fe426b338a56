"""The guard of a start, which ends a worker that hangs in TensorFlow."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from tf_adasum.cluster import error_file, start_timeout


@contextlib.contextmanager
def guard_of(worker, others=(), path=""):
    """The guard of a start that may take 0 s."""
    task = {"worker": worker.pid, "name": "worker 0", "seconds": 0.0, "others": list(others)}
    command = [sys.executable, "-I", "-S", start_timeout.__file__]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, error_file.NAME: str(path)}
    with subprocess.Popen(command, env=environment, **pipes) as guard:
        guard.stdin.write(json.dumps(task) + "\n")
        guard.stdin.flush()
        yield guard


def test_the_guard_kills_no_worker_that_has_started():
    """While the guard tries to reach the other workers."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # so that the next client waits
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        worker = stack.enter_context(subprocess.Popen(["sleep", "300"]))
        guard = stack.enter_context(guard_of(worker, [("worker 1", full.getsockname())]))
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(0.5)
        guard.stdin.close()
        assert guard.wait(10) == 0 and not guard.stderr.read() and worker.poll() is None
        worker.kill()


def test_one_that_its_guard_has_killed_says_so_in_its_error_file(tmp_path):
    path = tmp_path / "error"
    with subprocess.Popen(["sleep", "300"]) as worker, guard_of(worker, path=path) as guard:
        message = guard.stderr.read()
    report = error_file.read(path)
    assert message.startswith("tf_adasum: worker") and worker.returncode == -9
    assert report.is_because_of_another and report.error in message
