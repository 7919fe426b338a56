"""The guard of a start, which ends a worker that hangs in TensorFlow."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import eventually
from support.pace import PACE
from support.rendezvous_tasks import silent_listener

from tf_adasum.cluster import error_file, start_timeout

PROGRAM = """
import time
from tf_adasum.cluster import start_timeout
from tf_adasum.cluster.tasks import Cluster
addresses = ("h:1", "127.0.0.1:{silent}", "127.0.0.1:{there}")
cluster = Cluster(addresses, ("worker 0", "worker 1", "worker 2"), 0)
with start_timeout.bounded(cluster, {limit}):
    time.sleep({seconds})
print("started")
"""


@pytest.mark.parametrize(
    ("limit", "seconds", "launcher", "advice"),
    [
        (600, 3, "1", None),
        (0, 1, "1", None),  # it starts while the guard tries to reach the others
        (0, 60, "", "Start all workers again."),
        (0, 60, "1", "tf-adasum-launch ends the"),
    ],
)
def test_the_guard_of_the_start(tmp_path, limit, seconds, launcher, advice):
    path = tmp_path / "error"
    with silent_listener() as silent, socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()[1]
        program = PROGRAM.format(silent=silent[1], there=there, limit=limit, seconds=seconds)
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {start_timeout.LAUNCHER: launcher, error_file.NAME: str(path)},
            capture_output=True,
            text=True,
            timeout=50 * PACE,
        )
    report = error_file.read(path)
    if advice is None:
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "started\n", "")
        assert report is None
        return
    assert ended.returncode == -signal.SIGKILL
    assert (
        "tf_adasum: worker 0 has waited 0 s in TensorFlow's start-up, and worker 1 "
        f"(127.0.0.1:{silent[1]}) cannot be reached any more. This worker ends, because TensorFlow "
        f"would wait forever. {advice}"
    ) in ended.stderr
    assert report.is_because_of_another and report.error in ended.stderr


def test_the_guard_ends_with_its_worker():
    program = PROGRAM.format(silent=1, there=2, limit=600, seconds=600)
    with subprocess.Popen([sys.executable, "-c", program]) as worker:
        children, guards = Path(f"/proc/{worker.pid}/task/{worker.pid}/children"), []
        eventually(lambda: guards.extend(children.read_text().split()) or guards)
        worker.kill()
    eventually(lambda: not any(os.path.exists(f"/proc/{guard}/exe") for guard in guards))
