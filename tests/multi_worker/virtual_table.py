"""Compare virtual replicas with as many devices after 50 updates, and write a table.

    python tests/multi_worker/virtual_table.py run FOLDER
    python tests/multi_worker/virtual_table.py report FOLDER
    python tests/multi_worker/virtual_table.py accuracy FOLDER

`run` trains with every optimizer, unless FOLDER has the result, and saves weights, moving
statistics and logs. The topology 1x8 has a device for each of 8 replicas, and so has "pairs", with
radix_plan=[2, 2, 2]. `report` writes benchmarks/results/DATE-virtual_table.md with the largest
differences from both.
`accuracy` trains the elastic jobs of `JOBS`, unless FOLDER has the results, and writes
benchmarks/results/DATE-virtual_accuracy.md.
"""

import argparse
import os
import pathlib
import sys
import tempfile

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "multi_worker"), str(TESTS), str(TESTS.parent / "benchmarks")]

import report as written  # noqa: E402 - found on the path above
from scenarios import assert_close  # noqa: E402
from scenarios import virtual_replicas as scenarios  # noqa: E402
from support.worker_group import WorkerGroup  # noqa: E402

OPTIMIZERS = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam", "delta": "DeltaAdasum(LAMB)"}
REPLICAS, TOPOLOGIES, STEPS = (8, 32), ("1x1", "1x2", "2x1", "2x2", "4x1", "4x2"), 50

# Virtual replicas, rows of a replica, and for each part of a job its workers and its last update.
END = 10_000
JOBS = {
    "12 virtual replicas, 4 → 3 → 2 → 4 workers": (12, 4, ((4, 49), (3, 115), (2, 181), (4, END))),
    "without, 4 → 3 → 2 → 4 workers": (None, 12, ((4, 49), (3, 134), (2, 264), (4, END))),
}
COUNT = 10


def file_of(folder, replicas, topology, optimizer):
    return folder / f"{replicas}-{topology}-{optimizer}.npz"


def group_of(workers, devices, replicas, radix_plan=None):
    options = {"virtual_replicas": replicas, "radix_plan": radix_plan}
    return WorkerGroup(workers, devices, tempfile.mkdtemp(), options=options)


def run(folder, replicas, topology):
    missing = [o for o in OPTIMIZERS if not file_of(folder, replicas, topology, o).exists()]
    if not missing:
        return
    radix_plan = [2] * (replicas.bit_length() - 1) if topology == "pairs" else None
    workers, devices = (1, replicas) if radix_plan else map(int, topology.split("x"))
    with group_of(workers, devices, replicas, radix_plan) as group:
        for optimizer in missing:
            first, *others = group.run(
                scenarios.train, timeout=400, optimizer=optimizer, steps=STEPS
            )
            assert_close(others, first)
            np.savez(file_of(folder, replicas, topology, optimizer), **first)
            print(replicas, topology, optimizer, flush=True)


def difference(folder, replicas, topology, optimizer, of):
    files = (file_of(folder, replicas, each, optimizer) for each in (topology, of))
    found, reference = map(np.load, files)
    return f"{max(np.abs(found[name] - reference[name]).max() for name in reference):.1e}"


def report(folder):
    def table(reference):
        names = [each for each in ("pairs", *TOPOLOGIES) if each != reference]
        rows = [
            [n, name, *(difference(folder, n, each, key, reference or f"1x{n}") for each in names)]
            for n in REPLICAS
            for key, name in OPTIMIZERS.items()
        ]
        return written.table(["replicas", "optimizer", *names], rows)

    written.write(
        "virtual_table",
        "Virtual replicas, compared with as many devices",
        f"Largest difference of a weight, a moving statistic, the loss or a metric after {STEPS} "
        "updates of a small model with BatchNormalization and dropout, from a training with a "
        "device for each replica. A column is workers x devices of each. “pairs” are as many "
        "devices with `radix_plan=[2, 2, …]`: two ways to train with real replicas.\n\n"
        f"{table(None)}\n\n## From as many devices that are combined in pairs\n\n" + table("pairs"),
    )


def accuracies(folder, number):
    """Return the accuracies of the ten jobs with a number in `JOBS`."""
    replicas, rows, parts = list(JOBS.values())[number]
    for part, (workers, update) in enumerate(parts):
        file = folder / f"jobs{number}-{part}.npz"
        if not file.exists():
            options = {"rows": rows, "update": update, "jobs": COUNT}
            with group_of(workers, 1, replicas) as group:
                found = group.run(
                    scenarios.accuracies, timeout=400, folder=str(folder / f"{number}"), **options
                )[0]
            np.savez(file, **found)
            print(number, part, found, flush=True)
    return np.load(file)["accuracy"]


def report_accuracies(folder):
    rows = []
    for number, name in enumerate(JOBS):
        own = accuracies(folder, number) * 100
        each = " ".join(f"{value:.1f}" for value in sorted(own))
        rows.append([name, f"{own.mean():.1f}", f"{np.median(own):.1f}", each])
    written.write(
        "virtual_accuracy",
        "Accuracy of elastic jobs with and without virtual replicas",
        f"Accuracy in % on 257 held-out digits, after 8 epochs over the other 1,540, in {COUNT} "
        "jobs. SGD with the learning rate of one device. With virtual replicas, an update has 12 "
        "replicas of 4 rows; without, each worker is a replica of 12 rows, so an update has 48, 36 "
        "or 24 rows. A job on 4, 3, 2 and 4 workers is interrupted in the middle of the epochs 2, "
        "4 and 6, and resumes from its last backup, up to 14 updates earlier.\n\n"
        + written.table(["jobs", "mean", "median", "all"], rows),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["run", "report", "accuracy"])
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.action != "run":
        {"report": report, "accuracy": report_accuracies}[arguments.action](arguments.folder)
        return
    for replicas in REPLICAS:
        for topology in (f"1x{replicas}", "pairs", *TOPOLOGIES):
            run(arguments.folder, replicas, topology)


if __name__ == "__main__":
    main()
