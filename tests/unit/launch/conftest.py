"""Scripts for the workers of a launcher."""

import pytest

# Imports, and the rank of a worker of one machine.
BEGIN = """\
import json, os, signal, subprocess, sys, time
index = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
"""


@pytest.fixture
def script(tmp_path):
    """Write a worker script and return its path."""

    def write(text, name="worker.py"):
        path = tmp_path / name
        path.write_text(BEGIN + text)
        return str(path)

    return write
