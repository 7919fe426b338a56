"""Output that cannot be written does not change the exit status."""

import os
import subprocess
import sys

import pytest
from support.pace import PACE

pytestmark = pytest.mark.version_independent

STOP = """
import contextlib, sys
from tf_adasum.backup import safe_print
with contextlib.suppress(OSError):
    sys.stderr.write("a warning")
sys.stdout.write("a bar ")
safe_print.print_and_flush(sys.argv[1])
raise SystemExit(75)
"""


def ended(text, output):
    return subprocess.run(
        [sys.executable, "-c", STOP, text],
        stdout=output,
        stderr=output,
        timeout=60 * PACE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


@pytest.mark.parametrize(("text", "line"), [("stopped", b"tf_adasum: stopped\n"), ("", b"")])
def test_a_broken_output_leaves_the_exit_code(text, line):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as broken, open("/dev/full", "wb") as full:
        assert [ended(text, output).returncode for output in (broken, full)] == [75, 75]
    done = ended(text, subprocess.PIPE)
    assert (done.stdout, done.stderr) == (b"a bar " + line, b"a warning")
