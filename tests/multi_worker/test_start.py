"""How workers start: one that is missing, by IPv6, on several hosts."""

import re
import subprocess
import sys
import time

import pytest
from scenarios import aggregation, assert_close, basics
from support.pace import PACE
from support.rendezvous_tasks import needs_ipv6
from support.worker_group import WorkerGroup, free_ports, worker_environment

START = """
import tensorflow as tf, tf_adasum
options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=3)
tf_adasum.AdasumMirroredStrategy(communication_options=options)
"""


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.version_independent
def test_a_missing_worker_is_named(index):
    ports, begin = free_ports(2), time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", START],
        env=worker_environment(ports, index, devices=1),
        capture_output=True,
        text=True,
        timeout=60 * PACE,
    )
    assert ended.returncode == 1
    message = ended.stderr.strip().splitlines()[-1]
    assert re.search(f"TimeoutError.*worker {1 - index} .*{ports[1 - index]}.*did not", message)
    # 3 s of it waiting, the rest importing TensorFlow
    assert time.monotonic() - begin < 40 * PACE


@needs_ipv6
def test_workers_train_by_ipv6(tmp_path):
    """They share a secret, too: one worker has it from a variable, the other one from a file."""
    (tmp_path / "secret").write_text("s3cret\n")
    secrets = [{"TF_ADASUM_SECRET": "s3cret"}, {"TF_ADASUM_SECRET_FILE": str(tmp_path / "secret")}]
    with WorkerGroup(2, 1, tmp_path, hosts=["[::1]"] * 2, environments=secrets) as group:
        results = group.run(basics.train_on_identical_data, replicas=2, loss="mean")
    expected = basics.train_on_identical_data(None, replicas=1, loss="mean")
    assert_close(results, expected, rtol=2e-5, atol=2e-6)


def test_the_plan_follows_the_hosts(tmp_path):
    """Two workers with two devices each, on two addresses, which count as two hosts."""
    with WorkerGroup(2, 2, tmp_path, hosts=["127.0.0.1", "127.0.0.2"]) as group:
        results = group.run(aggregation.plan_of_a_large_bucket)
    assert [tuple(result["plan"]) for result in results] == [(2, 2)] * 2
