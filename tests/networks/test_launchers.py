"""Launchers on two hosts: their workers meet at the coordinator's address."""

import subprocess
import sys

import pytest
from support.pace import PACE
from support.worker_group import worker_environment

pytestmark = pytest.mark.version_independent

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


def started(host, *arguments, **variables):
    """Start the launcher on a host."""
    return host.popen(
        [sys.executable, "-m", "tf_adasum.launch", *arguments],
        env=worker_environment([], 0, devices=1) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_launchers_on_two_hosts_train_the_same_weights(make_network, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    hosts = make_network(2).hosts
    options = f"-n 1 --nnodes 2 --coordinator {hosts[0].address}:12345 --node-rank".split()
    secret = {"TF_ADASUM_SECRET": "of both hosts"}
    launchers = [
        started(host, *options, node, tmp_path / "program.py", **secret)
        for node, host in enumerate(hosts)
    ]
    said = [launcher.communicate(timeout=100 * PACE) for launcher in launchers]
    assert not any(launcher.returncode for launcher in launchers), said
    first, second = (output.partition("trained ")[2].split() for output, _ in said)
    assert (first, second) == (["0", "2", first[2]], ["1", "2", first[2]])
