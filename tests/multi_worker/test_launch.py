"""`tf-adasum-launch` with workers that use TensorFlow: what a user sees, and restarts."""

import contextlib
import subprocess

import pytest
from support import launching
from support.pace import PACE
from support.worker_group import free_ports, worker_environment


@pytest.fixture
def launched(tmp_path):
    """A function that starts the launcher with some options and a program."""
    with contextlib.ExitStack() as stack:

        def start(program, *arguments, options="-n 2"):
            path = tmp_path / "program.py"
            path.write_text(program)
            environment = worker_environment([], 0, devices=1)
            del environment["TF_CPP_MIN_LOG_LEVEL"]  # as a user's
            environment["TMPDIR"] = str(tmp_path)
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            command = [*options.split(), path, *arguments]
            return stack.enter_context(launching.running(*command, env=environment, **pipes))

        yield start


# AutoGraph writes a file for each function that it converts, and a killed process leaves it behind.
TWO_MODELS = """
import glob, tempfile
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
if not keras.__version__.startswith("2."):  # Keras 2 uses AutoGraph
    assert not glob.glob(tempfile.gettempdir() + "/__autograph_*")
"""


@pytest.mark.slow
def test_a_user_sees_the_program_s_own_lines(launched):
    process = launched(TWO_MODELS)
    output, errors = process.communicate(timeout=100 * PACE)
    assert process.returncode == 0, errors
    own = [f"[worker {index}] trained {units}" for index in (0, 1) for units in (1, 2)]
    assert sorted(output.splitlines()) == own
    (line,) = errors.splitlines()
    assert line.startswith("[worker 0] tf_adasum: 2 workers, 2 replicas over ")
    assert line.endswith(", rule Adasum") and len(line) <= 100


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


@pytest.mark.version_independent
@pytest.mark.parametrize(("failing", "how"), [(1, "killed"), (0, "raises")])
@pytest.mark.slow
def test_launchers_of_two_machines_start_again_together(launched, failing, how):
    (port,) = free_ports(1)
    options = f"-n 1 --nnodes 2 --coordinator 127.0.0.1:{port} --max-restarts 2 --node-rank "
    launchers = [
        launched(ONE_FAILS, str(failing), how, options=options + str(node)) for node in (0, 1)
    ]
    written = [launcher.communicate(timeout=120 * PACE) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], written
    trained = [output.partition("trained ")[2].split() for output, _ in written]
    assert [each[:2] for each in trained] == [["0", "2"], ["1", "2"]]
    assert trained[0][2] == trained[1][2]
    cause = "SIGKILL (killed" if how == "killed" else "exit status 1: ArithmeticError: bad luck"
    assert f"worker {failing} failed first, with {cause}" in written[failing][1]
    other = written[1 - failing][1]
    assert f"worker {1 - failing} ended because of another worker, with exit status 1" in other
    assert f"WorkerLostError: worker {failing} (" in other
    assert all("tf-adasum-launch: restart 1 of 2" in errors for _, errors in written)
