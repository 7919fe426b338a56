"""Nothing that comes from another process or a file is run; ruff looks for eval and exec, too."""

import re
from pathlib import Path

import pytest

import tf_adasum

pytestmark = pytest.mark.version_independent

# What ruff does not look for.
MODULES = r"^\s*(?:import|from) (?:_?c?pickle|cloudpickle|dill|joblib|shelve|marshal)\b"
UNSAFE = re.compile(rf"{MODULES}|allow_pickle|safe_mode|unsafe_", re.MULTILINE)


def test_nothing_that_is_read_is_run():
    files = Path(tf_adasum.__file__).parent.rglob("*.py")
    # `tf_adasum.run`: a notebook's own function, in a folder that only this user can read.
    found = {path.name for path in files if UNSAFE.search(path.read_text())}
    assert found == {"function_worker.py"}
