"""Corners of the table of versions: an environment for each, and a chosen set of tests in it.

    python3 tests/support/corners.py            # all, one after another: `make test-versions`
    python3 tests/support/corners.py 2.16       # those with one TensorFlow
    python3 tests/support/corners.py --today    # a part of them on one, another each day: `.ci/run`

Each corner has a folder in build/versions, with a virtual environment and a copy of the sources,
because a compiled op fits one TensorFlow; both are kept. docs/install.md has a table of results.
Standard library only: any Python runs it.
"""

import argparse
import datetime
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "versions"


class Corner(NamedTuple):
    """A TensorFlow, a Keras and a Python, as series."""

    tensorflow: str
    keras: str
    python: str

    @property
    def name(self):
        """What its folder is called."""
        return f"{self.tensorflow}-{self.keras}-py{self.python}"


# The oldest and newest of each, an old TensorFlow with a new Keras, and the other way round;
# the newest Python that a pair has, and once the oldest.
CORNERS = [
    Corner("2.16", "3.12", "3.12"),
    Corner("2.17", "3.11", "3.10"),
    Corner("2.18", "3.15", "3.12"),
    Corner("2.20", "3.13", "3.13"),
    Corner("2.21", "3.15", "3.13"),
]

# What every TensorFlow and Keras has.
EVERY_ONES_PYTHON = "3.11"

# What can differ between versions: every private name, the hooks, training in one process and on
# workers, restarts, a fault, joining.
KERAS_TESTS = "tests/multi_worker/test_keras.py"
TESTS = [
    "tests/unit/compat",
    "tests/unit/test_versions.py",
    "tests/unit/callbacks/test_adascale_callbacks.py::test_logs_what_the_optimizer_has",
    "tests/unit/doctor/test_installation.py",
    "tests/multi_worker/test_training.py::TestTraining",
    "tests/multi_worker/test_one_device.py::test_unusual_models_equal_one_device",
    "tests/multi_worker/test_nonfinite.py::TestLeftOut::test_every_optimizer",
    f"{KERAS_TESTS}::TestKeras::test_dropout_differs_and_is_reproducible",
    "tests/multi_worker/test_data.py::test_arrays_are_shuffled_by_one_seed",
    f"{KERAS_TESTS}::TestKeras::test_nothing_is_traced_after_the_first_epoch",
    f"{KERAS_TESTS}::TestXla::test_compiles_and_changes_nothing",
    "tests/multi_worker/test_delta_adasum_on_replicas.py",
    "tests/multi_worker/test_multi_optimizer.py",
    "tests/multi_worker/test_optimizers.py::test_every_optimizer",
    "tests/multi_worker/test_saving.py::test_saves_in_scope",
    "tests/multi_worker/test_resuming.py::test_every_optimizer_resumes_as_unbroken",
    "tests/multi_worker/test_faults.py::test_a_killed_worker_is_named",
    "tests/multi_worker/test_start.py::test_workers_train_by_ipv6",
]

# What a day's corner takes of them, as a change has to wait for it.
TESTS_OF_TODAY = [
    "tests/unit/compat",
    "tests/unit/test_versions.py",
    "tests/multi_worker/test_training.py::TestTraining::test_identical_data_equals_one_replica",
    "tests/multi_worker/test_resuming.py::test_every_optimizer_resumes_as_unbroken",
    "tests/multi_worker/test_faults.py::test_a_killed_worker_is_named",
]

# What the tests import; the versions of TensorFlow and Keras are the corner's.
TOOLS = ["pytest>=8", "hypothesis>=6.100", "cloudpickle>=3", "packaging", "setuptools>=77"]

# Seconds for the tests of a corner.
LIMIT = 1500


@functools.cache
def interpreter(python):
    """Return the path of a Python, such as "3.12"; None where there is none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python{python}"))
    for path in [shutil.which(f"python{python}"), *map(str, installed)]:
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


def copy_sources(folder):
    """Bring a copy of what git lists up to date, and leave everything else there alone."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = {path for path in listed.split("\0") if path and (ROOT / path).is_file()}
    for path in paths:
        source, target = ROOT / path, folder / path
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for name in ("tf_adasum", "tests", "examples"):
        for target in (folder / name).rglob("*.py"):
            if str(target.relative_to(folder)) not in paths:
                target.unlink()


def make_environment(corner, folder):
    """Install TensorFlow, Keras and this package, which is compiled only if its sources changed."""
    python = folder / ".venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if not python.exists():
        run([interpreter(corner.python), "-m", "venv", str(folder / ".venv")], folder)
    run(
        [*pip, f"tensorflow-cpu=={corner.tensorflow}.*", f"keras=={corner.keras}.*", *TOOLS], folder
    )
    digest = hashlib.sha256()
    sources = [*(folder / "custom_ops").rglob("*"), folder / "setup.py", folder / "pyproject.toml"]
    for path in sorted(path for path in sources if path.is_file() and path.suffix != ".pyc"):
        digest.update(path.read_bytes())
    stamp = folder / ".venv" / ".built"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        install = [*pip, "--no-build-isolation", "--no-deps", "-e", "."]
        run(install, folder, TF_ADASUM_CUDA="0")
        stamp.write_text(digest.hexdigest())
    return python


def run(command, folder, **environment):
    """Run a command in a folder; say it when it fails."""
    subprocess.run(command, cwd=folder, env=os.environ | environment, check=True)


def are_good(corner, tests):
    """Run the doctor and some tests on a corner; return whether all is well."""
    folder = FOLDER / corner.name
    folder.mkdir(parents=True, exist_ok=True)
    copy_sources(folder)
    python = make_environment(corner, folder)
    pytest = [python, "-m", "pytest", "-m", "not further", "-q", "-p", "no:cacheprovider", *tests]
    codes = [
        subprocess.run(command, cwd=folder).returncode
        for command in ([python, "-m", "tf_adasum.doctor"], ["timeout", str(LIMIT), *pytest])
    ]
    return codes == [0, 0]


def chosen(arguments):
    """Return the corners that were asked for; ends the program where one cannot be run."""
    wanted = CORNERS
    if arguments.today:
        corner = CORNERS[datetime.date.today().toordinal() % len(CORNERS)]
        if not interpreter(corner.python):
            print(f"Python {corner.python} is not here; {EVERY_ONES_PYTHON} takes its place")
            corner = corner._replace(python=EVERY_ONES_PYTHON)
        wanted = [corner]
    elif arguments.tensorflow:
        wanted = [corner for corner in CORNERS if corner.tensorflow in arguments.tensorflow]
    if not wanted:
        names = ", ".join(dict.fromkeys(corner.tensorflow for corner in CORNERS))
        sys.exit(f"expected one of TensorFlow {names}; Received: {arguments.tensorflow}")
    missing = {corner.python for corner in wanted if not interpreter(corner.python)}
    if missing:
        sys.exit(f"Python {', '.join(sorted(missing))} is not here: python{min(missing)} is needed")
    return wanted


def main():
    """Run some corners, and say what came of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tensorflow", nargs="*", help="series, as 2.16; all without one")
    parser.add_argument("--today", action="store_true", help="one corner, another one each day")
    arguments = parser.parse_args()
    good = {}
    for corner in chosen(arguments):
        print(f"== {corner.name}", flush=True)
        begin = time.monotonic()
        good[corner.name] = are_good(corner, TESTS_OF_TODAY if arguments.today else TESTS)
        print(f"{corner.name}: {time.monotonic() - begin:.0f} s", flush=True)
    print("".join(f"{'ok' if each else 'FAIL'}  {name}\n" for name, each in good.items()), end="")
    sys.exit(not all(good.values()))


if __name__ == "__main__":
    main()
