"""Launchers on two hosts: their workers meet at the coordinator's address."""

import subprocess
import sys
import time

import pytest
from support import sshd
from support.launching import SLEEP_WITH_CHILD, eventually, is_running, pids_in
from support.worker_group import worker_environment

pytestmark = pytest.mark.one_stack

PROGRAM = """
import keras, numpy as np, tf_adasum

strategy = tf_adasum.AdasumMirroredStrategy()
x = np.random.default_rng(0).normal(size=[16, 4]).astype("float32")
with strategy.scope():
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input([4]), layer])
    model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, shuffle=False)
print("trained", strategy.rank, strategy.num_workers, model.get_weights()[0].tobytes().hex())
"""


def test_launchers_on_two_hosts_train_the_same_weights(make_network, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    hosts = make_network(2).hosts
    options = f"-n 1 --nnodes 2 --coordinator {hosts[0].address}:12345 --node-rank".split()
    environment = worker_environment([], 0, devices=1) | {"TF_ADASUM_SECRET": "of both hosts"}
    launchers = [
        host.popen(
            [sys.executable, "-m", "tf_adasum.launch", *options, node, tmp_path / "program.py"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, host in enumerate(hosts)
    ]
    said = [launcher.communicate(timeout=200) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    trained = [output.partition("trained ")[2].split() for output, _ in said]
    assert [each[:2] for each in trained] == [["0", "2"], ["1", "2"]]
    assert trained[0][2] == trained[1][2]


@pytest.fixture
def make_hosts(make_network, tmp_path):
    """A function that returns a network of two hosts with ssh servers, and the environment."""
    if reason := sshd.why_not():
        pytest.skip(f"no ssh server can be started here: {reason}")

    def make():
        network = make_network(2)
        (tmp_path / "sshd").mkdir()
        servers = sshd.Servers(tmp_path / "sshd", network.hosts)
        return network, {"TF_ADASUM_SSH": servers.command}

    return make


def launched(host, hosts, environment, *arguments):
    """Start the launcher on a host, with one worker on each of some hosts."""
    names = ",".join(f"{each.address}:1" for each in hosts)
    return host.popen(
        [sys.executable, "-m", "tf_adasum.launch", "--hosts", names, *arguments],
        env=worker_environment([], 0, devices=1) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_hosts_over_ssh_train_the_same_weights(make_hosts, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    network, environment = make_hosts()
    first, second = network.hosts
    # The order of the ranks is another one than that of the addresses.
    launcher = launched(first, [second, first], environment, tmp_path / "program.py")
    said = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, said
    trained = sorted(line.partition("trained ")[2].split() for line in said[0].splitlines())
    assert [each[:2] for each in trained] == [["0", "2"], ["1", "2"]], said
    assert trained[0][2] == trained[1][2]


@pytest.mark.slow
def test_hosts_whose_connection_is_cut_end_their_workers(make_hosts, tmp_path):
    (tmp_path / "worker.py").write_text("import os, subprocess, sys, time\n" + SLEEP_WITH_CHILD)
    pids = tmp_path / "pids"
    pids.mkdir()
    network, environment = make_hosts()
    launcher = launched(
        network.hosts[0], network.hosts, environment, tmp_path / "worker.py", str(pids)
    )
    eventually(lambda: len(pids_in(pids)) == 4)
    network.cut(1)
    begin = time.monotonic()
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 255, errors
    assert "host 10.77.0.2: the ssh connection was lost, stopping the other hosts" in errors
    assert sum(map(is_running, pids_in(pids))) <= 2 and time.monotonic() - begin < 40
    eventually(lambda: not any(map(is_running, pids_in(pids))), seconds=25)
