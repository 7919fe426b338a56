"""Scripts for the workers of a launcher."""

import pytest


@pytest.fixture
def script(tmp_path):
    """Write a worker script and return its path."""

    def write(text, name="worker.py"):
        path = tmp_path / name
        path.write_text("import json, os, signal, subprocess, sys, time\n" + text)
        return str(path)

    return write
