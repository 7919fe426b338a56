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

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Bugs that a person could write: name, folder of tests/unit, file, original text, replacement.
BUGS = [
    (
        "sharding: the next shuffle has the seed of an earlier one",
        "workers",
        "tf_adasum/workers/sharding.py",
        "self._seeds.drawn = int(drawn.max())",
        "self._seeds.drawn = int(drawn.min())",
    ),
    (
        "Adasum's tree: the last of an odd number of replicas is dropped",
        "aggregation",
        "tf_adasum/aggregation/rules/adasum.py",
        "carried = nodes_SMR[:, even:]",
        "carried = nodes_SMR[:, :0]",
    ),
    (
        "bf16: float16 gradients are rounded to bfloat16",
        "aggregation",
        "tf_adasum/aggregation/reduction_planner.py",
        "wire_dtype.size >= dtype.size",
        "wire_dtype.size > dtype.size",
    ),
    (
        "LAMB: v is corrected with the power of β1",
        "optimizers",
        "tf_adasum/optimizers/lamb.py",
        "v_hat = v / _one_minus_power(beta_2, t)",
        "v_hat = v / _one_minus_power(beta_1, t)",
    ),
    (
        "AdaScale: the variance is divided by C in place of C - 1",
        "optimizers",
        "tf_adasum/optimizers/gain.py",
        "scale / (count - 1)",
        "scale / count",
    ),
    (
        "restore order: epoch 9 counts as newer than epoch 10",
        "backup",
        "tf_adasum/backup/backup_files.py",
        "(int(name[1]), int(name[2]), path)",
        "(name[1], name[2], path)",
    ),
    (
        "failure diagnosis: a failure in another call ends this one",
        "health",
        "tf_adasum/health/diagnosis.py",
        "own.in_call and status.call == own.call",
        "own.in_call",
    ),
    (
        "detection: a rank equal to the number of workers is accepted",
        "cluster",
        "tf_adasum/cluster/detection.py",
        "rank >= size",
        "rank > size",
    ),
    (
        "wire format: a message that arrives in two parts is lost",
        "cluster",
        "tf_adasum/cluster/channel.py",
        '*lines, self._incoming = self._incoming.split(b"\\n")',
        'lines, self._incoming = self._incoming.split(b"\\n"), b""',
    ),
    (
        "launcher: a worker that was stopped counts as the one that failed first",
        "launch",
        "tf_adasum/launch/failures.py",
        "if not end.is_stopped or (end.report and end.failed_at <= first.ended_at)",
        "if True",
    ),
]


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
        for bug, tests, name, original, replacement in BUGS:
            file = copy / name
            text = file.read_text()
            assert text.count(original) == 1, f"{name} no longer has: {original}"
            file.write_text(text.replace(original, replacement))
            failure = first_failure(copy, f"tests/unit/{tests}")
            file.write_text(text)
            print(f"{bug}: {failure or 'MISSED'}", flush=True)
            missed += [bug] if failure is None else []
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
