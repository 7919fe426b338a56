"""Compare virtual replicas with as many devices after 50 updates, and write a table.

    python tests/multi_worker/virtual_table.py run FOLDER [--replicas 8] [--topologies 1x2 ...]
    python tests/multi_worker/virtual_table.py report FOLDER

`run` trains with every optimizer, unless FOLDER has the result, and saves weights, moving
statistics and logs. The topology 1x8 has a device for each of 8 replicas. `report` writes
benchmarks/results/DATE-virtual_table.md with the largest difference from as many devices.
"""

import argparse
import contextlib
import importlib
import os
import pathlib
import sys
import tempfile

import numpy as np

TESTS = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = (str(TESTS / "multi_worker"), str(TESTS), str(TESTS.parent / "benchmarks"))
OPTIMIZERS = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam", "delta": "DeltaAdasum(LAMB)"}
REPLICAS, TOPOLOGIES, STEPS = (8, 32), ("1x1", "1x2", "2x1", "2x2", "4x1", "4x2"), 50


def file_of(folder, replicas, topology, optimizer):
    return pathlib.Path(folder) / f"{replicas}-{topology}-{optimizer}.npz"


def run(folder, replicas, topology):
    scenarios = importlib.import_module("scenarios.virtual_replicas")
    worker_group = importlib.import_module("support.worker_group")
    missing = [o for o in OPTIMIZERS if not file_of(folder, replicas, topology, o).exists()]
    if not missing:
        return
    workers, devices = map(int, topology.split("x"))
    group = worker_group.WorkerGroup(
        workers, devices, tempfile.mkdtemp(), options={"virtual_replicas": replicas}
    )
    with contextlib.closing(group):
        for optimizer in missing:
            first, *others = group.run(
                scenarios.train, timeout=400, optimizer=optimizer, steps=STEPS
            )
            for other in others:
                for name, value in first.items():
                    np.testing.assert_array_equal(value, other[name], err_msg=name)
            np.savez(file_of(folder, replicas, topology, optimizer), **first)
            print(replicas, topology, optimizer, flush=True)


def difference(folder, replicas, topology, optimizer):
    files = (file_of(folder, replicas, each, optimizer) for each in (topology, f"1x{replicas}"))
    found, reference = map(np.load, files)
    return max(np.abs(found[name] - reference[name]).max() for name in reference)


def report(folder):
    written = importlib.import_module("report")
    rows = [
        [replicas, name, *(f"{difference(folder, replicas, each, key):.0e}" for each in TOPOLOGIES)]
        for replicas in REPLICAS
        for key, name in OPTIMIZERS.items()
    ]
    written.write(
        "virtual_table",
        "Virtual replicas, compared with as many devices",
        f"Largest difference of a weight, a moving statistic, the loss or a metric after {STEPS} "
        "updates of a small model with BatchNormalization and dropout, from a training with a "
        "device for each replica. A column is workers x devices of each.\n\n"
        + written.table(["replicas", "optimizer", *TOPOLOGIES], rows),
    )


def main():
    sys.path[:0] = FOLDERS
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["run", "report"])
    parser.add_argument("folder")
    parser.add_argument("--replicas", nargs="*", type=int, default=REPLICAS)
    parser.add_argument("--topologies", nargs="*", default=("1x8", "1x32", *TOPOLOGIES))
    arguments = parser.parse_args()
    if arguments.action == "report":
        report(arguments.folder)
        return
    pathlib.Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    for replicas in arguments.replicas:
        for topology in arguments.topologies:
            workers, devices = map(int, topology.split("x"))
            if replicas % (workers * devices) == 0 and (
                workers * devices <= 8 or devices == replicas
            ):
                run(arguments.folder, replicas, topology)


if __name__ == "__main__":
    main()
