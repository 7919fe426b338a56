"""Report the errors of two workers that run different programs, and the cost of detecting it.

    python benchmarks/differences.py [--former COMMIT] [--limit SECONDS]

For each case of tests/multi_worker/scenarios/differences.py, reports the seconds until both workers
have raised an error, and the message of worker 0. With `--former`, also reports them for the Python
files of an earlier commit. A group of workers that raises nothing within the limit is killed. The
cost is the time to compute the fingerprint of a call of `fit`, in one process. Writes
benchmarks/results/DATE-differences.md.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import report

TESTS = report.ROOT / "tests"
sys.path[:0] = [str(TESTS / "multi_worker"), str(TESTS)]

from support.worker_group import WorkerFailed, WorkerGroup  # noqa: E402 - found on the path above

LONGEST = 150  # characters of a message


def outcomes(cases, checkout, limit):
    """Return for each case the seconds until both workers have raised an error, and the errors."""
    from scenarios import differences

    path = os.pathsep.join(map(str, [checkout, TESTS, TESTS / "multi_worker"]))
    found, group = {}, None
    for case in cases:
        if group is None or group.has_ended:
            environments = [{"PYTHONPATH": path}] * 2
            folder = tempfile.mkdtemp()
            group = WorkerGroup(2, 1, folder, environments=environments, fresh=True)
        try:
            results = group.run(differences.run, timeout=limit, case=case)
        except WorkerFailed:
            found[case] = None
            print(f"{case}: no error on both", file=sys.stderr)
            continue
        errors = [str(each["error"][0]) for each in results]
        found[case] = max(float(each["seconds"]) for each in results), errors
        print(f"{case}: {found[case][0]:.1f} s", file=sys.stderr)
        if any("Lost" in each or "Graph execution" in each for each in errors):
            group.close()  # after these errors, no collective works
    if group:
        group.close()
    return found


@contextlib.contextmanager
def checkout_of(commit):
    """Return a context manager for a folder with a commit's files, and the op built here."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit, "tf_adasum"],
            cwd=report.ROOT,
            capture_output=True,
            check=True,
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        for built in (report.ROOT / "tf_adasum" / "ops").glob("_*[!y]"):
            if built.is_file():
                shutil.copy(built, pathlib.Path(folder, "tf_adasum", "ops"))
        yield folder


def cell(outcome, limit):
    """Return the outcome of a case as a cell."""
    if outcome is None:
        return f"**no error on both within {limit} s**"
    seconds, errors = outcome
    if "none" in errors:
        return f"**worker {errors.index('none')} raises nothing**"
    text = " ".join(errors[0].split()).replace(f"{report.ROOT}/", "")
    return f"{seconds:.1f} s: {text[:LONGEST]}{'…' * (len(text) > LONGEST)}".replace("|", "\\|")


def cost_of_fingerprint():
    """Return rows: model, parameters, milliseconds of the first call and of later ones."""
    sys.setrecursionlimit(20_000)  # for the model of 1,000 layers
    import keras
    import numpy as np

    from tf_adasum.compat.keras.call_settings import settings_of

    layers = keras.layers
    convolutions = [layers.Conv2D(8, 5, activation="relu"), layers.MaxPooling2D()]
    models = {
        "small CNN": [keras.Input((28, 28, 1)), *convolutions, layers.Flatten(), layers.Dense(10)],
        "1,000 layers": [keras.Input((4,)), *(layers.Dense(4) for _ in range(1000))],
        "92 M parameters": [
            keras.Input((4096,)),
            *(layers.Dense(4096) for _ in range(5)),
            layers.Dense(1950),
        ],
    }
    rows = []
    for name, its_layers in models.items():
        model = keras.Sequential(its_layers)
        model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
        x = np.ones((8, *model.input_shape[1:]), "float32")
        milliseconds = []
        for _ in range(51):
            begun = time.perf_counter()
            settings_of(model, "fit", {"x": x, "y": x}).digest  # noqa: B018
            milliseconds.append(1000 * (time.perf_counter() - begun))
        first, *later = milliseconds
        rows.append([name, f"{model.count_params():,}", f"{first:.2f}", report.quartiles(later)])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--former", help="a commit to compare with")
    parser.add_argument("--limit", type=int, default=100, help="seconds for a case")
    arguments = parser.parse_args()
    from scenarios import differences

    cases = [case for case in differences.CASES if case != "what may differ"]
    here = outcomes(cases, report.ROOT, arguments.limit)
    former = {}
    if arguments.former:
        with checkout_of(arguments.former) as folder:
            former = outcomes(cases, folder, arguments.limit)
    rows = []
    for number, case in enumerate(cases, 1):
        before = [cell(former[case], arguments.limit)] if former else []
        rows.append([str(number), case, cell(here[case], arguments.limit), *before])
    header = ["", "worker 1 has", "now", *(["before"] if former else [])]
    slowest = max((outcome[0] for outcome in here.values() if outcome), default=0.0)
    raised = sum(bool(outcome) and "none" not in outcome[1] for outcome in here.values())
    body = [
        f"Both workers raise in {raised} of {len(cases)} cases, at most after {slowest:.1f} s.",
        "",
        report.table(header, rows),
        "",
        "Cost of the fingerprint of a call of `fit`, milliseconds: the first call of a model, and",
        "the quartiles of 50 later ones.",
        "",
        report.table(["model", "parameters", "first", "later"], cost_of_fingerprint()),
    ]
    report.write("differences", "Workers that differ", "\n".join(body))


if __name__ == "__main__":
    main()
