"""Corners of the table of versions: an environment for each, and a chosen set of tests in it.

    python3 tests/support/corners.py            # all, one after another: `make test-versions`
    python3 tests/support/corners.py 2.16       # those with one TensorFlow
    python3 tests/support/corners.py --today    # a part of them on one, another each day: `.ci/run`

Each corner has a folder in build/versions, with a virtual environment and a copy of the sources,
because a compiled op fits one TensorFlow; both are kept. The results are written to
build/versions/results.jsonl. `--record` also writes them to benchmarks/results/versions.jsonl, and
updates the table in docs/install.md. Standard library only: any Python runs it.
"""

import argparse
import datetime
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "versions"
KEPT = ROOT / "benchmarks" / "results" / "versions.jsonl"
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- begin of results -->\n", "<!-- end of results -->\n"


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
    "tests/unit/doctor/test_installation.py",
    "tests/multi_worker/test_training.py::TestTraining",
    f"{KERAS_TESTS}::TestWaysToRun::test_jit_compile_trains_without_xla",
    f"{KERAS_TESTS}::TestKeras::test_one_overflow_is_skipped_by_all",
    f"{KERAS_TESTS}::TestKeras::test_dropout_differs_and_is_reproducible",
    f"{KERAS_TESTS}::TestKeras::test_every_row_is_seen_once_in_an_epoch",
    f"{KERAS_TESTS}::TestKeras::test_statistics_are_averaged_before_evaluation",
    f"{KERAS_TESTS}::TestKeras::test_steps_per_execution_changes_nothing",
    f"{KERAS_TESTS}::TestKeras::test_nothing_is_traced_after_the_first_epoch",
    f"{KERAS_TESTS}::TestXla::test_compiles_and_changes_nothing",
    "tests/multi_worker/test_saving.py::test_saves_in_scope",
    "tests/multi_worker/test_backup.py::test_goes_on_within_an_epoch_as_unbroken",
    "tests/multi_worker/test_restart.py::TestBackup::test_adascale_goes_on_as_if_unbroken",
    "tests/multi_worker/test_faults.py::test_a_killed_worker_is_named",
    "tests/multi_worker/test_start.py::test_workers_train_by_ipv6",
]

# What a day's corner takes of them, as a change has to wait for it.
TESTS_OF_TODAY = [
    "tests/unit/compat",
    "tests/unit/test_versions.py",
    "tests/multi_worker/test_training.py::TestTraining::test_replicas_are_bit_identical",
    "tests/multi_worker/test_backup.py::test_goes_on_within_an_epoch_as_unbroken",
    "tests/multi_worker/test_faults.py::test_a_killed_worker_is_named",
]

# What the tests import; the versions of TensorFlow and Keras are the corner's.
TOOLS = ["pytest>=8", "hypothesis>=6.100", "cloudpickle>=3", "packaging", "setuptools>=77"]

# Seconds for the tests of a corner.
LIMIT = 1500


# ---- environments ------------------------------------------------------------------------------


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


# ---- one corner --------------------------------------------------------------------------------


def run_tests(corner, tests):
    """Run tests on a corner; return what came of it, a dict."""
    folder = FOLDER / corner.name
    folder.mkdir(parents=True, exist_ok=True)
    copy_sources(folder)
    python = make_environment(corner, folder)
    doctor = subprocess.run(
        [python, "-m", "tf_adasum.doctor", "--json"], cwd=folder, capture_output=True, text=True
    )
    found = json.loads(doctor.stdout)
    begin, report = time.monotonic(), folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-m", "not further", "-q", "-p", "no:cacheprovider"]
    try:
        code = subprocess.run(
            [*command, f"--junitxml={report}", *tests], cwd=folder, timeout=LIMIT
        ).returncode
    except subprocess.TimeoutExpired:
        code = 124
    return {
        **{name: found.get(name) for name in ("tensorflow", "keras", "python", "op", "numpy")},
        "doctor": "ok" if found["usable"] else "FAIL",
        **counts(report),
        "code": code,
        "seconds": round(time.monotonic() - begin),
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def counts(report):
    """Return how many tests passed and were skipped, and which failed, from pytest's report."""
    found = {"passed": 0, "skipped": 0, "failed": []}
    cases = xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ()
    for case in cases:
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            name = f"{case.get('classname').replace('.', '/')}::{case.get('name')}"
            found["failed"].append(name)
        else:
            found["skipped" if "skipped" in outcomes else "passed"] += 1
    return found


def is_good(result):
    """Whether everything that ran was right, and something did."""
    return (result["code"], result["doctor"]) == (0, "ok") and result["passed"] > 0


# ---- results -----------------------------------------------------------------------------------


def series(version):
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def corner_of(result):
    """Return the corner that a result is of."""
    return Corner(*(series(result[name]) for name in ("tensorflow", "keras", "python")))


def results_in(path):
    """Return the results in a file of JSON lines, by corner."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {corner_of(result): result for result in map(json.loads, lines)}


def keep(path, result):
    """Write a result in the place of an earlier one of its corner."""
    results = results_in(path) | {corner_of(result): result}
    path.write_text("".join(json.dumps(results[corner]) + "\n" for corner in sorted(results)))


def renewed(text, results):
    """Return the page with the table of some results."""
    section = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return section.sub(lambda match: BEGIN + table_of(results) + END, text)


def table_of(results):
    """Return the rows of results, in the order of the corners; corners that were not run, too."""
    lines = [
        "| TensorFlow | Keras | Python | NumPy | tests passed | skipped | failed | minutes | on |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for corner in CORNERS:
        own = results.get(corner)
        if own is None:
            lines.append(f"| {' | '.join(corner)} | – | not run | | | | |")
            continue
        found = [own[name] for name in ("tensorflow", "keras", "python", "numpy", "passed")]
        found += [own["skipped"], "; ".join(own["failed"]) or 0, f"{own['seconds'] / 60:.0f}"]
        lines.append(f"| {' | '.join(map(str, found))} | {own['date']} |")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------


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
    parser.add_argument("--record", action="store_true", help="keep the results for the page")
    arguments = parser.parse_args()
    if arguments.today and arguments.record:
        parser.error("--record takes all tests: leave --today out")
    results = []
    for corner in chosen(arguments):
        print(f"== {corner.name}", flush=True)
        result = run_tests(corner, TESTS_OF_TODAY if arguments.today else TESTS)
        results.append(result)
        keep(FOLDER / "results.jsonl", result)
        if arguments.record:
            keep(KEPT, result)
            PAGE.write_text(renewed(PAGE.read_text(), results_in(KEPT)))
    for result in results:
        print(("ok    " if is_good(result) else "FAIL  ") + json.dumps(result), flush=True)
    sys.exit(not all(map(is_good, results)))


if __name__ == "__main__":
    main()
