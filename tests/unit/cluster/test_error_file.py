"""Why a worker fails, in one line and in a file that its launcher reads."""

import os
import subprocess
import sys
import time

import pytest

from tf_adasum.cluster import error_file
from tf_adasum.cluster.error_file import reason_of

PROGRAM = """
from tf_adasum.cluster import error_file
from tf_adasum.cluster.error_file import reason_of
from tf_adasum.errors import WorkerLostError
error_file.begin()
error_file.begin()
raise {}
"""


# The text of an exception in a tf.function.
OF_AUTOGRAPH = """in user code:

    File "a", line 1  *
        b

    OSError: two
    lines
"""


@pytest.mark.parametrize(
    ("raised", "error", "is_because_of_another"),
    [
        ("ValueError('two\\nlines')", "ValueError: two", False),
        (f"OSError({OF_AUTOGRAPH!r})", "OSError: two", False),
        ("KeyError", "KeyError", False),
        ("WorkerLostError('worker 1')", "WorkerLostError: worker 1", True),
        ("SystemExit(3)", None, None),
    ],
)
def test_a_worker_writes_why_it_fails(tmp_path, raised, error, is_because_of_another):
    path, begun = tmp_path / "error", time.time()
    environment = {**os.environ, error_file.NAME: str(path)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(raised)], env=environment, capture_output=True
    )
    report = error_file.read(path)
    if error is None:
        assert report is None and ended.returncode == 3
        return
    assert (report.error, report.is_because_of_another) == (error, is_because_of_another)
    assert begun <= report.time <= time.time() and error.encode() in ended.stderr


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"error": 1}', '{"error": "x", "time": 0.0}', "\xff"]
)
def test_a_file_that_is_none(tmp_path, text):
    path = tmp_path / "error"
    assert error_file.read(path) is None
    path.write_bytes(text.encode("latin-1"))
    assert error_file.read(path) is None


# ---- exceptions in one line ----------------------------------------------------------------------

TRACE = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 29, in <module>

  File "keras/src/backend/tensorflow/trainer.py", line 399, in fit

"""
OLD_TRACE = """Graph execution error:

Detected at node 'PyFunc' defined at (most recent call last):
    File "train.py", line 29, in <module>
      model.fit(x)
Node: 'PyFunc'
"""


@pytest.mark.parametrize("trace", [TRACE, OLD_TRACE])
def test_what_happened_at_a_node(trace):
    text = "the values differ\nReceived: 1\n\t [[{{node PyFunc}}]] [Op:__inference_f_12]"
    assert reason_of(RuntimeError(trace + text)) == "RuntimeError: the values differ"
    text = "2 root error(s) found.\n  (0) INTERNAL: no\n\t [[{{node PyFunc}}]]"
    assert reason_of(RuntimeError(trace + text)) == "RuntimeError: (0) INTERNAL: no"


def test_an_exception_of_python_within_tensorflow():
    text = TRACE + "KeyError: 'a'\nTraceback (most recent call last):\n\n\t [[{{node PyFunc}}]]"
    assert reason_of(RuntimeError(text)) == "KeyError: 'a'"


def test_other_exceptions():
    assert reason_of(ValueError("a\nb")) == "ValueError: a"
    of_keras = "Exception encountered when calling LSTM.call().\n\n\x1b[1mno rows\x1b[0m\n\nArgs"
    assert reason_of(ValueError(of_keras)) == "ValueError: no rows"
    assert reason_of(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert reason_of(SystemExit(0)) == "SystemExit"
    assert reason_of(SystemExit("no")) == "SystemExit: no"
    assert len(reason_of(ValueError("x" * 10**6))) < 400
