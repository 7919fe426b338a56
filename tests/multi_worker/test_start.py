"""What a worker says when the cluster does not come up."""

import os
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from scenarios import basics
from support.meetings import needs_ipv6
from support.worker_group import WorkerGroup, free_ports, worker_environment

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
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", ports[0]))
        other.listen()
        message, _ = start_alone(ports, 0)
    me = rf"\S+ \(pid {os.getpid()}\)"
    assert re.search(f"OSError.*worker 0 .*{ports[0]}.*in use by {me}", message)


@pytest.mark.one_stack
def test_another_program_at_a_worker_s_address_is_named():
    ports = free_ports(2)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", ports[1]))
        other.listen()
        message, _ = start_alone(ports, 0)
    assert re.search(f"TimeoutError.*The program at the address of .*{ports[1]}", message)


@needs_ipv6
@pytest.mark.feature("workers that reach each other by IPv6", topology="2x1")
def test_workers_train_by_ipv6(tmp_path):
    """They share a secret, too: one worker has it from a variable, the other one from a file."""
    (tmp_path / "secret").write_text("s3cret\n")
    secrets = [{"TF_ADASUM_SECRET": "s3cret"}, {"TF_ADASUM_SECRET_FILE": str(tmp_path / "secret")}]
    group = WorkerGroup(2, 1, tmp_path, hosts=["[::1]", "[::1]"], environments=secrets)
    try:
        results = group.run(basics.train_on_identical_data, replicas=2, loss="mean")
    finally:
        group.close()
    expected = basics.train_on_identical_data(None, replicas=1, loss="mean")
    for actual in results:
        for name in expected.keys() - {"loss"}:  # the sum over all rows
            np.testing.assert_allclose(actual[name], expected[name], rtol=2e-5, atol=2e-6)


STRATEGIES = """
import sys, time
import keras, numpy as np, tensorflow as tf, tf_adasum

def made(number, rule):
    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=rule)

    @tf.function
    def step():
        context = tf.distribute.get_replica_context()
        marker = strategy.gradient_reduction
        return context.all_reduce("SUM", [tf.constant([3.0])], options=marker)

    def combined():
        return strategy.experimental_local_results(strategy.run(step)[0])[0].numpy()

    return strategy, combined

def fit(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    return model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=8, verbose=0)

first, of_first = made(0, "adasum")
rank, replicas = first.rank, first.num_replicas_in_sync
assert rank == first.cluster_resolver.task_id
assert (first.num_workers, first.is_first_worker) == (2, rank == 0)
expected = {"adasum": 3.0, "sum": 3.0 * replicas}  # of equal gradients
fit(first)
for number in range(1, 20):
    time.sleep(0.5 * (number < 5 and number % 2 == rank))  # the other one is ahead
    rule = ["adasum", "sum"][number % 2]
    strategy, combined = made(number, rule)
    assert combined() == expected[rule], number
    if number % 10 == 9:
        fit(strategy)
assert of_first() == expected["adasum"], "the first one goes on"

try:
    made(20, ["adasum", "sum"][rank])
except ValueError as error:
    assert "same settings" in str(error) and "worker 1" in str(error), error
else:
    raise AssertionError("different settings")
assert of_first() == expected["adasum"]

if rank == 1:
    print("as expected", flush=True)
    sys.exit()
try:
    made(21, "adasum")
except tf_adasum.WorkerLostError as error:
    assert "worker 1" in str(error) and "has ended" in str(error), error
    print("as expected", flush=True)
"""


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=pytest.mark.slow)])
def test_many_strategies_in_the_same_processes(topology, tmp_path):
    """Each worker is the later one at times; they differ at last, and one does not come."""
    (tmp_path / "strategies.py").write_text(STRATEGIES)
    workers, devices = topology.split("x")
    command = ["-n", workers, "--devices-per-worker", devices, str(tmp_path / "strategies.py")]
    ended = subprocess.run(
        [sys.executable, "-m", "tf_adasum.launch", *command],
        env=worker_environment([], 0, devices=1),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("as expected") == 2
    said = [line for line in ended.stderr.splitlines() if "tf_adasum: 2 workers, " in line]
    assert len(said) == 2, "one line for each rule"
    assert all(line.startswith("[worker 0]") for line in said)
