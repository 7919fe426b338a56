"""What the packages import; `make lint` checks which may import which."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[2]

# What opens without TensorFlow: the launcher and the doctor start without it.
LIGHT = "backup cluster launch replicas compat health workers doctor arguments atomic_files errors"
LIGHT += " cluster.rendezvous cluster.start_timeout cluster.tf_config launch.run health.monitor"


def test_packages_are_imported_without_others():
    # -S: without site-packages there is no TensorFlow, Keras or NumPy to import.
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "\n".join(f"import tf_adasum.{name}" for name in LIGHT.split())
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


# What ruff does not look for.
MODULES = r"^\s*(?:import|from) (?:_?c?pickle|cloudpickle|dill|joblib|shelve|marshal)\b"
UNSAFE = re.compile(rf"{MODULES}|allow_pickle|safe_mode|unsafe_", re.MULTILINE)


def test_nothing_that_is_read_is_run():
    files = (ROOT / "tf_adasum").rglob("*.py")
    # `tf_adasum.run`: a notebook's own function, in a folder that only this user can read.
    found = {path.name for path in files if UNSAFE.search(path.read_text())}
    assert found == {"function_worker.py"}
