"""Lines that nobody reads change no exit status."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.one_stack

STOP = (
    "import contextlib, sys\n"
    "from tf_adasum.backup import safe_print\n"
    "with contextlib.suppress(OSError): sys.stderr.write('a warning')\n"
    "if sys.argv[2]: sys.stdout.write('a bar')\n"
    "safe_print.print_and_flush(sys.argv[1])\n"
    "raise SystemExit(75)\n"
)


def ended(text, output, errors, before=""):
    command = [sys.executable, "-c", STOP, text, before]
    kept = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, stdout=output, stderr=errors, timeout=60, env=kept)


@pytest.mark.parametrize("text", ["stopped", ""], ids=["worker 0", "another worker"])
def test_a_broken_output_leaves_the_exit_code(text):
    reader, writer = os.pipe()
    os.close(reader)
    assert ended(text, writer, writer, "yes").returncode == 75
    os.close(writer)
    with open("/dev/full", "w") as full:
        assert ended(text, full, full, "yes").returncode == 75


def test_it_is_written_where_somebody_reads():
    pipe = subprocess.PIPE
    assert ended("stopped", pipe, pipe).stdout == b"tf_adasum: stopped\n"
    assert ended("", pipe, pipe).stdout == b""
    assert ended("", pipe, pipe).stderr == b"a warning"
