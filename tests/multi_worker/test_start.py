"""What a worker says when the cluster does not come up."""

import os
import re
import socket
import subprocess
import sys
import time

import pytest
from support.worker_group import free_ports, worker_environment

START = """
import tensorflow as tf, tf_adasum
options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=3)
tf_adasum.AdasumMirroredStrategy(communication_options=options)
"""


def start_alone(ports, index):
    """Starts one worker of a cluster; returns what it wrote and the seconds it took."""
    begin = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", START],
        env=worker_environment(ports, index, devices=1),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 1
    return ended.stderr.strip().splitlines()[-1], time.monotonic() - begin


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.one_stack
def test_a_missing_worker_is_named(index):
    ports = free_ports(2)
    message, seconds = start_alone(ports, index)
    assert re.search(f"TimeoutError.*worker {1 - index} .*{ports[1 - index]}.*did not", message)
    assert seconds < 60  # 3 s of it waiting, the rest importing TensorFlow


@pytest.mark.one_stack
def test_a_taken_port_is_named():
    ports = free_ports(2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[0]))
        other.listen()
        message, _ = start_alone(ports, 0)
    me = rf"\S+ \(pid {os.getpid()}\)"
    assert re.search(f"OSError.*worker 0 .*{ports[0]}.*in use by {me}", message)


@pytest.mark.one_stack
def test_another_program_at_a_worker_s_address_is_named():
    ports = free_ports(2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[1]))
        other.listen()
        message, _ = start_alone(ports, 0)
    assert re.search(f"TimeoutError.*Another program answers.*{ports[1]}", message)


TWO_STRATEGIES = """
import tensorflow as tf, tf_adasum
for rule, expected in [("adasum", 3.0), ("sum", 6.0)]:  # of two equal gradients
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=rule)

    @tf.function
    def step():
        context = tf.distribute.get_replica_context()
        marker = strategy.gradient_reduction
        return context.all_reduce("SUM", [tf.constant([3.0])], options=marker)

    assert strategy.run(step)[0].numpy() == [expected], rule
"""


def test_a_second_strategy_in_the_same_processes(tmp_path):
    (tmp_path / "two.py").write_text(TWO_STRATEGIES)
    ended = subprocess.run(
        [sys.executable, "-m", "tf_adasum.launch", "-n", "2", str(tmp_path / "two.py")],
        env=worker_environment([], 0, devices=1),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
