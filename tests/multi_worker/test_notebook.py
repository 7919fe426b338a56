"""`tf_adasum.run` with functions of the main program, as those of a notebook's cells.

tests/test_documented_programs.py runs pages as notebooks.
"""

import sys

import pytest
from support.launching import output_of
from support.worker_group import worker_environment

CELLS = """
import sys
import tf_adasum

def helper(number):
    return 1 / number

def fails():
    print("begins")
    helper(0)

def made():  # what `fit` returns; its model stays in the worker
    import keras

    history = keras.callbacks.History()
    history.set_model(keras.Sequential())
    return history

try:
    tf_adasum.run(fails, workers=1)
except RuntimeError as error:
    print(f"RuntimeError: {error}.")
assert "tensorflow" not in sys.modules
history = tf_adasum.run(made, workers=1)
print(type(history).__name__, history.model)
"""


def test_functions_of_cells_run_and_fail_in_workers(tmp_path):
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    (tmp_path / "cells.py").write_text(CELLS)
    environment = worker_environment([], 0, devices=1)
    del environment["TF_ADASUM_DEVICES_PER_WORKER"]
    printed = output_of(sys.executable, tmp_path / "cells.py", env=environment)
    reason = "worker 0 failed first, with exit status 1: ZeroDivisionError: division by zero"
    for text in ("begins\n", "line 6, in helper\n", f"RuntimeError: {reason}.\n", "History None\n"):
        assert printed.count(text) == 1, printed
