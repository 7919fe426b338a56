"""`tf-adasum-launch` with workers that use TensorFlow: what a user sees, and their ports."""

import contextlib
import signal
import subprocess
import sys

import pytest
from support.port_opener import others_opening_ports
from support.worker_group import free_ports, worker_environment


def launched(tmp_path, program, level=None, workers=2):
    """Run a program on several workers; return the exit status and all lines that were shown."""
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = worker_environment([], 0, devices=1)
    del environment["TF_CPP_MIN_LOG_LEVEL"]  # as a user's
    if level is not None:
        environment["TF_CPP_MIN_LOG_LEVEL"] = level
    ended = subprocess.run(
        [sys.executable, "-m", "tf_adasum.launch", "-n", str(workers), path],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    return ended.returncode, ended.stdout.splitlines()


TWO_MODELS = """
import keras, numpy as np, tf_adasum

strategy = tf_adasum.AdasumMirroredStrategy()
x = np.random.default_rng(0).normal(size=[16, 4]).astype("float32")
for units in (1, 2):
    with strategy.scope():
        layers = [keras.layers.Dense(3), keras.layers.BatchNormalization()]
        model = keras.Sequential([keras.layers.Input([4]), *layers, keras.layers.Dense(units)])
        model.compile("sgd", "mse", metrics=["mae"])
    model.fit(x, x[:, :units], batch_size=8, verbose=0, validation_data=(x, x[:, :units]))
    assert model.predict(x, verbose=0).shape == (16, units)
    print("trained", units)
"""


def test_a_user_sees_the_program_s_own_lines(tmp_path):
    code, lines = launched(tmp_path, TWO_MODELS)
    own = [f"[worker {index}] trained {units}" for index in (0, 1) for units in (1, 2)]
    (found,) = [line for line in lines if "tf_adasum: " in line]
    assert found.startswith("[worker 0] tf_adasum: 2 workers, 2 replicas over ")
    assert found.endswith(", rule Adasum") and len(found) <= 100
    assert (code, sorted(line for line in lines if line != found)) == (0, own)


def test_all_lines_of_tensorflow_are_shown_on_demand(tmp_path):
    program = "import tensorflow as tf; tf.constant(1)"
    code, lines = launched(tmp_path, program, level="0")
    assert code == 0
    for worker in ("[worker 0]", "[worker 1]"):
        assert any(line.startswith(worker) and "cpu_feature_guard" in line for line in lines)


# Starts TensorFlow's server, maybe on a port that another socket has taken.
SERVER = """
import json, os, socket
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
if {taken} and index == 1:
    other = socket.create_server(("", int(config["cluster"]["worker"][1].rpartition(":")[2])))
tf.distribute.Server(config["cluster"], job_name="worker", task_index=index)
os._exit(0)
"""


def test_an_error_of_tensorflow_s_server_is_shown(tmp_path):
    code, lines = launched(tmp_path, SERVER.format(taken=True))
    assert code == 1
    of_server = [line for line in lines if "grpc_server_lib.cc" in line]
    assert of_server and "UNKNOWN: Could not start gRPC server" in of_server[0]
    assert of_server[0].startswith("[worker 1] ")


@pytest.mark.slow
def test_tensorflow_s_server_gets_its_port_beside_others_that_open_ports(tmp_path):
    with others_opening_ports():
        for _ in range(10):
            assert launched(tmp_path, SERVER.format(taken=False), workers=3) == (0, [])


# In the first start one worker fails in its second epoch, others wait for it.
ONE_FAILS = """
import os, signal, sys
import keras, numpy as np, tf_adasum

restart, rank = (os.environ["TF_ADASUM_" + name] for name in ("RESTART_COUNT", "RANK"))

class Failure(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and restart == "0" and rank == sys.argv[1]:
            if sys.argv[2] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("bad luck")

strategy = tf_adasum.AdasumMirroredStrategy()
x = np.random.default_rng(0).normal(size=[16, 4]).astype("float32")
with strategy.scope():
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input([4]), layer])
    model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, shuffle=False, callbacks=[Failure()])
print("trained", strategy.rank, strategy.num_workers, model.get_weights()[0].tobytes().hex())
"""


@pytest.mark.one_stack
@pytest.mark.feature("launchers on several machines restart after a failure", topology="2x1")
@pytest.mark.parametrize(("failing", "how"), [(1, "killed"), (0, "raises")])
def test_launchers_of_two_machines_start_again_together(tmp_path, failing, how):
    path = tmp_path / "program.py"
    path.write_text(ONE_FAILS)
    (port,) = free_ports(1)
    options = f"-n 1 --nnodes 2 --coordinator 127.0.0.1:{port} --max-restarts 2".split()
    command = [sys.executable, "-m", "tf_adasum.launch", *options]
    with contextlib.ExitStack() as stack:
        launchers = [
            subprocess.Popen(
                [*command, "--node-rank", str(node), path, str(failing), how],
                env=worker_environment([], 0, devices=1),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in (0, 1)
        ]
        for launcher in launchers:
            stack.callback(launcher.kill)
        said = [launcher.communicate(timeout=250) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    trained = [output.partition("trained ")[2].split() for output, _ in said]
    assert [each[:2] for each in trained] == [["0", "2"], ["1", "2"]]
    assert trained[0][2] == trained[1][2]
    cause = "SIGKILL (killed" if how == "killed" else "exit status 1: ArithmeticError: bad luck"
    assert f"worker {failing} failed first, with {cause}" in said[failing][1]
    other = said[1 - failing][1]
    assert f"worker {1 - failing} ended because of another worker, with exit status 1" in other
    assert f"WorkerLostError: worker {failing} (" in other
    assert all("tf-adasum-launch: restart 1 of 2" in errors for _, errors in said)


STOPPED = """
import os, sys
import keras, numpy as np, tf_adasum

class Announcement(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            print("trains", flush=True)

strategy = tf_adasum.AdasumMirroredStrategy()
x = np.zeros([16, 4], "float32")
with strategy.scope():
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
backup = tf_adasum.callbacks.BackupAndRestore(sys.argv[1])
model.fit(x, x, batch_size=2, epochs=10**6, verbose=0, callbacks=[backup, Announcement()])
"""


@pytest.mark.keras3_only("Keras 2 has its own BackupAndRestore")
def test_a_launcher_that_is_stopped_leaves_a_backup(tmp_path):
    path, backup = tmp_path / "program.py", tmp_path / "backup"
    path.write_text(STOPPED)
    with subprocess.Popen(
        [sys.executable, "-m", "tf_adasum.launch", "-n", "2", path, backup],
        env=worker_environment([], 0, devices=1),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        try:
            assert "trains" in launcher.stdout.readline()
            launcher.send_signal(signal.SIGTERM)
            _, errors = launcher.communicate(timeout=60)
        finally:
            launcher.kill()
    assert launcher.returncode == 75, errors
    assert list(backup.iterdir()) and "failed" not in errors
