"""Why a worker fails, in a file that its launcher reads."""

import os
import subprocess
import sys
import time

import pytest

from tf_adasum.cluster import error_file

PROGRAM = """
from tf_adasum.cluster import error_file
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
