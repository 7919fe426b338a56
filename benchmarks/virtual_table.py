"""Compare virtual replicas with as many devices, and elastic jobs with and without them.

    python benchmarks/virtual_table.py weights            # an hour
    python benchmarks/virtual_table.py accuracy

`weights` trains a small model with every optimizer on every topology, and compares weights, moving
statistics and logs after 50 updates with those of a device for each replica, and with those of
"pairs": a device for each replica, too, with radix_plan=[2, 2, …]. Writes
benchmarks/results/DATE-virtual_table.md. `accuracy` trains the elastic jobs of `JOBS`, and writes
benchmarks/results/DATE-virtual_accuracy.md.
"""

import argparse
import tempfile

import numpy as np
import report
from scenarios import assert_close
from scenarios import virtual_replicas as scenarios
from support.worker_group import WorkerGroup

OPTIMIZERS = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam", "delta": "DeltaAdasum(LAMB)"}
REPLICAS, TOPOLOGIES, STEPS = (8, 32), ("1x1", "1x2", "2x1", "2x2", "4x1", "4x2"), 50
# Virtual replicas, rows of a replica, and for each part of a job its workers and its last update.
JOBS = {
    "12 virtual replicas, 4 → 3 → 2 → 4 workers": (12, 4, ((4, 49), (3, 115), (2, 181), (4, None))),
    "without, 4 → 3 → 2 → 4 workers": (None, 12, ((4, 49), (3, 134), (2, 264), (4, None))),
}
COUNT = 10


def on_workers(workers, devices, options, scenario, *all_arguments):
    """Run a scenario with each of some arguments; return the results of worker 0."""
    with WorkerGroup(workers, devices, tempfile.mkdtemp(), options=options) as group:
        found = [group.run(scenario, timeout=400, **arguments) for arguments in all_arguments]
    for first, *others in found:
        assert_close(others, first)
    return [first for first, *_ in found]


def trained(replicas, topology):
    """Return the result of each optimizer."""
    options = {"virtual_replicas": replicas}
    if topology == "pairs":
        topology, options["radix_plan"] = f"1x{replicas}", [2] * (replicas.bit_length() - 1)
    arguments = [{"optimizer": optimizer, "steps": STEPS} for optimizer in OPTIMIZERS]
    return on_workers(*map(int, topology.split("x")), options, scenarios.train, *arguments)


def difference(found, expected):
    return f"{max(np.abs(found[name] - expected[name]).max() for name in expected):.1e}"


def weights():
    """Write the report on the weights."""
    rows = {"a device for each replica": [], "pairs": []}
    for replicas in REPLICAS:
        found = {each: trained(replicas, each) for each in (f"1x{replicas}", "pairs", *TOPOLOGIES)}
        for table, reference in zip(rows.values(), found, strict=False):
            for number, name in enumerate(OPTIMIZERS.values()):
                own = (found[topology][number] for topology in ("pairs", *TOPOLOGIES))
                differences = (difference(each, found[reference][number]) for each in own)
                table.append([replicas, name, *differences])
    header = ["replicas", "optimizer", "pairs", *TOPOLOGIES]
    tables = (f"## From {each}\n\n{report.table(header, own)}" for each, own in rows.items())
    report.write(
        "virtual_table",
        "Virtual replicas, compared with as many devices",
        f"Largest difference of a weight, a moving statistic, the loss or a metric after {STEPS} "
        "updates of a small model with BatchNormalization and dropout. A column is workers x "
        "devices of each. “pairs” are as many devices as replicas, with "
        "`radix_plan=[2, 2, …]`: two ways to train with real replicas.\n\n" + "\n\n".join(tables),
    )


def accuracy():
    """Write the report on the accuracy of elastic jobs."""
    rows = []
    for name, (replicas, samples, parts) in JOBS.items():
        options, folder = {"virtual_replicas": replicas}, tempfile.mkdtemp()
        arguments = {"folder": f"{folder}/job", "rows": samples, "jobs": COUNT}
        for workers, update in parts:
            own = arguments | {"update": update}
            (found,) = on_workers(workers, 1, options, scenarios.accuracies, own)
        own = sorted(found["accuracy"] * 100)
        each = " ".join(f"{value:.1f}" for value in own)
        rows.append([name, f"{np.mean(own):.1f}", f"{np.median(own):.1f}", each])
    report.write(
        "virtual_accuracy",
        "Accuracy of elastic jobs with and without virtual replicas",
        f"Accuracy in % on 257 held-out digits, after 8 epochs over the other 1,540, in {COUNT} "
        "jobs. SGD with the learning rate of one device. With virtual replicas, an update has 12 "
        "replicas of 4 rows; without, each worker is a replica of 12 rows, so an update has 48, 36 "
        "or 24 rows. A job on 4, 3, 2 and 4 workers is interrupted in the middle of the epochs 2, "
        "4 and 6, and resumes from its last backup, up to 14 updates earlier.\n\n"
        + report.table(["jobs", "mean", "median", "all"], rows),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("which", choices=["weights", "accuracy"])
    {"weights": weights, "accuracy": accuracy}[parser.parse_args().which]()


if __name__ == "__main__":
    main()
