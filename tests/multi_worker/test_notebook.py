"""`tf_adasum.run` in the kernel of a notebook: what appears in cells."""

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


CELL_THAT_FAILS = """
import tf_adasum

def helper(number):
    return 1 / number

def fails():
    print("begins")
    helper(0)

tf_adasum.run(fails, workers=1)
"""


# What `fit` returns; its model stays in the worker.
CELL_WITH_A_HISTORY = """
def made():
    import keras

    history = keras.callbacks.History()
    history.set_model(keras.Sequential())
    return history

history = tf_adasum.run(made, workers=1)
print(type(history).__name__, history.model)
"""


def test_an_error_in_a_cell_shows_the_number_of_its_line(kernel):
    output, errors, error = kernel(CELL_THAT_FAILS)
    # A worker's stdout and stderr are two pipes, whose lines may come in either order.
    assert output.count("begins\n") == 1
    assert output.replace("begins\n", "").startswith("Traceback")
    assert "line 4, in helper\n" in output
    assert errors == "" and error == [
        "RuntimeError",
        "worker 0 failed first, with exit status 1: ZeroDivisionError: division by zero",
    ]
    assert kernel("import sys; assert 'tensorflow' not in sys.modules")[2] == []
    assert kernel(CELL_WITH_A_HISTORY) == ("History None\n", "", [])
