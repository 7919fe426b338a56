"""Print a table that compares training with the mean on replicas with Keras on one device.

    python tests/multi_worker/mean_table.py [--topologies 1x2 2x1 2x2] [--rule mean] > table.md

Each row is one training: a loss, its reduction, the rows of the last batch, clipping, and an
optimizer. Every two of these values occur together. A number is the largest difference from one
device, divided by the largest number of its kind, of weights, losses and metrics.
"""

import argparse
import os
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from scenarios import one_device
from support.worker_group import WorkerGroup

CLOSE = 1e-5


def differences(expected, actual, number):
    """Return the largest relative difference of the weights and of the logs of a case, or a text."""
    own = {name: value for name, value in expected.items() if name.startswith(f"{number}/")}
    others = {name: value for name, value in actual.items() if name.startswith(f"{number}/")}
    for each in (own, others):
        if f"{number}/error" in each:
            return str(each[f"{number}/error"])[:80], ""
    if own.keys() != others.keys():
        return f"other names: {sorted(own.keys() ^ others.keys())}", ""
    found = {"weight": 0.0, "log": 0.0}
    for name, value in own.items():
        kind = "weight" if "/weight" in name else "log"
        value, other = np.asarray(value, "float64"), np.asarray(others[name], "float64")
        largest = max(1e-3, np.abs(value).max(initial=0))
        difference = np.abs(value - other).max(initial=0) / largest
        found[kind] = max(found[kind], difference if np.isfinite(difference) else np.inf)
    return found["weight"], found["log"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topologies", nargs="*", default=["1x2", "2x1", "2x2"])
    parser.add_argument("--rule", default="mean")
    parser.add_argument("--cases", type=int, help="number of cases; default: all")
    arguments = parser.parse_args()
    cases = one_device.cases()[: arguments.cases]
    expected = one_device.train_all(None, cases)
    columns = {}
    for topology in arguments.topologies:
        workers, devices = map(int, topology.split("x"))
        group = WorkerGroup(workers, devices, tempfile.mkdtemp())
        try:
            results = group.run(
                one_device.train_all, timeout=3000, cases=cases, rule=arguments.rule
            )
        finally:
            group.close()
        for other in results[1:]:
            for name, value in results[0].items():
                np.testing.assert_array_equal(value, other[name], err_msg=name)
        columns[topology] = [differences(expected, results[0], n) for n in range(len(cases))]
    print("| loss | reduction | last batch | clipping | optimizer |", end="")
    print("".join(f" {topology}: weights | logs |" for topology in columns))
    print("|---" * (5 + 2 * len(columns)) + "|")
    far = 0
    for number, case in enumerate(cases):
        values = [value for column in columns.values() for value in column[number]]
        far += sum(bool(v) if isinstance(v, str) else v > CLOSE for v in values)
        texts = [value if isinstance(value, str) else f"{value:.0e}" for value in values]
        print("| " + " | ".join([*case, *texts]) + " |")
    print(f"\n{len(cases) * len(columns)} trainings, {far} numbers differ by more than {CLOSE}.")


if __name__ == "__main__":
    main()
