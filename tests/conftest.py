"""Settings that every test shares."""

import importlib
import os
import signal
import sys
import time
from pathlib import Path

_begin = time.monotonic()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow  # noqa: E402, F401 - the import is what is measured

os.environ["SECONDS_OF_TENSORFLOW_IMPORT"] = str(time.monotonic() - _begin)  # see support/pace.py

import pytest  # noqa: E402

ROOT = Path(__file__).parents[1]
# The code that tests share (`support`, and `scenarios` in tests/multi_worker), and the code that
# builds the site. They come last: a file here hides no package, whatever its name.
sys.path += [str(ROOT / folder) for folder in ("tests", "tests/multi_worker", "docs/site")]

# A shell that starts the tests in the background, as `make test` does, has them ignore it, and
# every process that they start: as in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# By default a trial at each start decides: tests say what carries the gradients.
os.environ.setdefault("TF_ADASUM_TRANSPORT", "tensorflow")

pytest_plugins = ["support.pace", "support.keras_versions", "support.lanes"]


@pytest.fixture
def load(monkeypatch):
    """A function that imports a module of benchmarks/, examples/ or experiments/ by its name."""
    for folder in (ROOT, ROOT / "examples", ROOT / "benchmarks"):
        monkeypatch.syspath_prepend(folder)
    return importlib.import_module
