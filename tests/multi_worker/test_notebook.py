"""`tf_adasum.run` in the kernel of a notebook: what appears in cells, and what stays there."""

import contextlib

import pytest
from support.pace import PACE
from support.worker_group import worker_environment

LIMIT = 120 * PACE


@pytest.fixture
def kernel(tmp_path):
    """A function that runs a cell and returns its stdout, its stderr and the lines of its error."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    start = pytest.importorskip("jupyter_client.manager").start_new_kernel
    environment = worker_environment([], 0, devices=1) | {"HOME": str(tmp_path)}
    del environment["TF_ADASUM_DEVICES_PER_WORKER"]
    manager, client = start(startup_timeout=LIMIT, env=environment, cwd=str(tmp_path))

    def cell(code):
        streams, error = {"stdout": "", "stderr": ""}, []

        def collect(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                streams[content["name"]] += content["text"]
            elif message["msg_type"] == "error":
                error[:] = [content["ename"], *content["evalue"].splitlines()]

        client.execute_interactive(code, timeout=LIMIT, output_hook=collect)
        return streams["stdout"], streams["stderr"], error

    try:
        yield cell
    finally:
        client.stop_channels()
        with contextlib.suppress(RuntimeError):
            manager.shutdown_kernel(now=True)


TRAIN = """
import sys, numpy as np, tf_adasum

def train(units, epochs=2):
    import keras

    strategy = tf_adasum.AdasumMirroredStrategy()
    x = np.random.default_rng(0).normal(size=[16, 4]).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(units)])
        model.compile("sgd", "mse")
    print("replicas", strategy.num_replicas_in_sync)
    return model.fit(x, x[:, :units], batch_size=8, epochs=epochs, verbose=0)

history = tf_adasum.run(train, workers=2, args=[1], devices_per_worker=2)
print(type(history).__name__, len(history.history["loss"]), history.model)
"""


@pytest.mark.slow
def test_training_in_a_cell(kernel):
    output, errors, error = kernel("import sys, tf_adasum\nassert 'tensorflow' not in sys.modules")
    assert (output, errors, error) == ("", "", [])
    output, _, error = kernel(TRAIN)
    assert not error
    lines = output.splitlines()
    assert "[worker 0] replicas 4" in lines and "[worker 1] replicas 4" in lines
    assert lines[-1] == "History 2 None"
    _, _, error = kernel(
        "import tensorflow as tf\nassert tf.config.list_logical_devices()\n"
        "assert not tf.distribute.has_strategy()"
    )
    assert not error, "the notebook's TensorFlow is as it was"


CELL_THAT_FAILS = """
import tf_adasum

def helper(number):
    return 1 / number  # a line of a cell

def fails():
    print("begins")
    helper(0)

tf_adasum.run(fails, workers=1)
"""


def test_an_error_in_a_cell_shows_its_line(kernel):
    output, errors, error = kernel(CELL_THAT_FAILS)
    assert output == "begins\n" and "Traceback" in errors
    assert error[:2] == [
        "RuntimeError",
        "worker 0 of 1 failed, with exit status 1: ZeroDivisionError: division by zero",
    ]
    assert "    return 1 / number  # a line of a cell" in error
    assert kernel("print(tf_adasum.run(lambda: 3, workers=1))") == ("3\n", "", [])
