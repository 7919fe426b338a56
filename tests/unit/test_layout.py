"""The layout of the package: few files at the top, short files, packages without TensorFlow.

pyproject.toml lists which package may import which, and `make lint` checks it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tf_adasum"
MOST_FILES_AT_THE_TOP = 10
MOST_LINES = 450

# What opens without TensorFlow: the launcher and the doctor start without it.
LIGHT = "backup cluster launch replicas compat health workers doctor arguments atomic_files errors"
LIGHT += " cluster.rendezvous cluster.start_timeout cluster.tf_config launch.run health.monitor"


def test_few_files_stand_at_the_top():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES_AT_THE_TOP


def test_files_are_short():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= MOST_LINES, path


def test_packages_are_imported_without_others():
    # -S: without site-packages there is no TensorFlow, Keras or NumPy to import.
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "\n".join(f"import tf_adasum.{name}" for name in LIGHT.split())
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
