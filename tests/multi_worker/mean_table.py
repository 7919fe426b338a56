"""Compare training on replicas with Keras on one device, and write a table.

    python tests/multi_worker/mean_table.py run PART.json [--rule mean] [--former COMMIT]
    python tests/multi_worker/mean_table.py report PART.json ...

Each row is one training: a loss, its reduction, the rows of the last batch, clipping, and an
optimizer. Every two of these values occur together, except those that Keras cannot combine.
`run` trains all rows with a rule and saves a column. Under the mean, weights, losses and metrics
are compared with those of one device. Under other rules, the replicas' weights must be identical,
and losses and metrics at these weights are compared. `--former` trains with the package of an
earlier commit. `report` joins columns and writes benchmarks/results/DATE-mean_table.md.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import sys
import tempfile

import numpy as np

TESTS = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = (str(TESTS / "multi_worker"), str(TESTS), str(TESTS.parent / "benchmarks"))
CLOSE = 1e-5


def column(topology, rule, cases, checkout):
    """Return for each case how much weights and logs differ from one device."""
    one_device = importlib.import_module("scenarios.one_device")
    worker_group = importlib.import_module("support.worker_group")
    workers, devices = map(int, topology.split("x"))
    path = {"PYTHONPATH": os.pathsep.join([str(checkout), *FOLDERS])}
    group = worker_group.WorkerGroup(
        workers, devices, tempfile.mkdtemp(), environments=[path] * workers, fresh=True
    )
    expected, options = one_device.train_all(None, cases), {"cases": cases, "rule": rule}
    try:
        results = group.run(one_device.train_all, timeout=3000, **options)
        for other, (name, value) in itertools.product(results[1:], results[0].items()):
            np.testing.assert_array_equal(value, other[name], err_msg=name)
        if rule != "mean":
            starts = [one_device.weights_in(results[0], number) for number in range(len(cases))]
            results = group.run(one_device.train_all, timeout=3000, starts=starts, **options)
            expected = one_device.train_all(None, cases, starts=starts)
    finally:
        group.close()
    return [one_device.differences(expected, results[0], n) for n in range(len(cases))]


def run(arguments):
    one_device = importlib.import_module("scenarios.one_device")
    report = importlib.import_module("report")
    cases = one_device.cases()[: arguments.cases]
    former = arguments.former
    here = contextlib.nullcontext(report.ROOT)
    with report.checkout_of(former) if former else here as checkout:
        columns = {
            topology: column(topology, arguments.rule, cases, checkout)
            for topology in arguments.topologies
        }
    part = {"rule": arguments.rule, "commit": former or report.commit(), "columns": columns}
    pathlib.Path(arguments.parts[0]).write_text(json.dumps(part))


def is_far(value):
    return bool(value) if isinstance(value, str) else not value <= CLOSE


def report(arguments):
    one_device = importlib.import_module("scenarios.one_device")
    cases = one_device.cases()
    parts = [json.loads(pathlib.Path(name).read_text()) for name in arguments.parts]
    names, columns, counts = [], [], []
    for part in parts:
        for topology, found in part["columns"].items():
            names.append(f"{topology}, {part['rule']}, {part['commit']}")
            columns.append(found)
            far = sum(any(map(is_far, each)) for each in found)
            counts.append(f"- {names[-1]}: {far} of {len(found)} trainings")
    rows = [
        [*case, *(cell(column[number]) if number < len(column) else "" for column in columns)]
        for number, case in enumerate(cases)
    ]
    written = importlib.import_module("report")
    pairs = [f"- {' with '.join(pair)}: {why}." for pair, why in one_device.IMPOSSIBLE.items()]
    written.write(
        "mean_table",
        "Training on replicas, compared with Keras on one device",
        f"Largest difference of the weights / of losses and metrics, each divided by the largest "
        f"element of its array. {one_device.STEPS} batches of {one_device.BATCH} rows in each of 2 "
        f"epochs; the last one has {', '.join(map(str, one_device.ROWS.values()))} rows. Every two "
        "settings occur together, except these:\n\n"
        + "\n".join(pairs)
        + f"\n\nTrainings with a difference of more than {CLOSE}, or with an error:\n\n"
        + "\n".join(counts)
        + "\n\n"
        + written.table([*one_device.DIMENSIONS, *names], rows),
    )


def cell(differences):
    texts = (each if isinstance(each, str) else f"{each:.0e}" for each in differences)
    return " / ".join(filter(None, texts))


def main():
    sys.path[:0] = FOLDERS
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["run", "report"])
    parser.add_argument("parts", nargs="+", help="JSON files: columns")
    parser.add_argument("--topologies", nargs="*", default=["1x2", "2x1", "2x2"])
    parser.add_argument("--rule", default="mean")
    parser.add_argument("--former", help="a commit whose package is used")
    parser.add_argument("--cases", type=int, help="number of cases; default: all")
    arguments = parser.parse_args()
    {"run": run, "report": report}[arguments.action](arguments)


if __name__ == "__main__":
    main()
