"""Print a table that compares training with the mean on replicas with Keras on one device.

    python tests/multi_worker/mean_table.py [--topologies 1x2 2x1 2x2] [--rule mean] > table.md

Each row is one training: a loss, its reduction, the rows of the last batch, clipping, and an
optimizer. Every two of these values occur together. `one_device.differences` computes the numbers.
With another rule than the mean, only the logs of the first step could be equal; the table then
shows that all workers have the same numbers.
"""

import argparse
import importlib
import os
import pathlib
import sys
import tempfile

import numpy as np

CLOSE = 1e-5


def main():
    """Train on one device and on each topology, and print the table."""
    here = pathlib.Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    one_device = importlib.import_module("scenarios.one_device")
    worker_group = importlib.import_module("support.worker_group")
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
        group = worker_group.WorkerGroup(workers, devices, tempfile.mkdtemp())
        try:
            options = {"cases": cases, "rule": arguments.rule}
            results = group.run(one_device.train_all, timeout=3000, **options)
        finally:
            group.close()
        for other in results[1:]:
            for name, value in results[0].items():
                np.testing.assert_array_equal(value, other[name], err_msg=name)
        numbers = range(len(cases))
        columns[topology] = [one_device.differences(expected, results[0], n) for n in numbers]
    print("| loss | reduction | last batch | clipping | optimizer |", end="")
    print("".join(f" {topology}: weights | logs |" for topology in columns))
    print("|---" * (5 + 2 * len(columns)) + "|")
    far = 0
    for number, case in enumerate(cases):
        values = [value for column in columns.values() for value in column[number]]
        far += sum(bool(each) if isinstance(each, str) else each > CLOSE for each in values)
        texts = [each if isinstance(each, str) else f"{each:.0e}" for each in values]
        print("| " + " | ".join([*case, *texts]) + " |")
    print(f"\n{len(cases) * len(columns)} trainings, {far} numbers differ by more than {CLOSE}.")


if __name__ == "__main__":
    main()
