"""Insert ten bugs into a copy of the package, one after the other: the unit tests must detect each.

    python benchmarks/seeded_bugs.py

Prints the first test that fails for each bug. The exit status is 1 if a bug is not detected.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Of each bug its name, and where and what it is.
BUGS = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text())


def first_failure(copy, tests):
    """Return the first test that fails in a copy of the repository, or None."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *options, tests]
    ended = subprocess.run(
        command,
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    lines = ended.stdout.splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), None)


def main():
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        for name in ("tf_adasum", "tests", "pyproject.toml"):
            copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copied(ROOT / name, copy / name)
        for tests in sorted({own["tests"] for own in BUGS.values()}):
            failure = first_failure(copy, f"tests/unit/{tests}")
            assert failure is None, f"without a bug: {failure}"
        for bug, own in BUGS.items():
            file = copy / own["file"]
            text = file.read_text()
            assert text.count(own["original"]) == 1, f"{file} no longer has: {own['original']}"
            file.write_text(text.replace(own["original"], own["replacement"]))
            failure = first_failure(copy, f"tests/unit/{own['tests']}")
            file.write_text(text)
            print(f"{bug}: {failure or 'MISSED'}", flush=True)
            missed += [bug] if failure is None else []
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
