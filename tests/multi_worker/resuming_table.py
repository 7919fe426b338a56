"""Print a table of killed trainings that resume with each kind of data.

    python tests/multi_worker/resuming_table.py [--kinds array] [--before table.md] > table.md

Each cell is a training of `scenarios/resuming_data.py` beside an unbroken one: "exact" if each row
of the interrupted epoch was used once and the weights have the same bits. A training resumes in the
process that was killed in it ("same"), with new objects, or in a new process.
"""

import argparse
import importlib
import os
import pathlib
import shutil
import sys
import tempfile

TOPOLOGIES = {"1 worker": 1, "2 workers": 2}
HERE = pathlib.Path(__file__).parent


def main():
    """Run the trainings, and print the table."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    scenarios = importlib.import_module("scenarios.resuming_data")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="*", default=list(scenarios.DATA))
    parser.add_argument("--before", help="a table that this script printed for another commit")
    arguments = parser.parse_args()
    cases = [(kind, place) for kind in arguments.kinds for place in scenarios.PLACES]
    columns = {}
    for name, workers in TOPOLOGIES.items():
        columns |= train_all(scenarios, name, workers, cases)
    header = ["data", "killed in", *columns]
    rows = [[*case, *(cells[case] for cells in columns.values())] for case in cases]
    cells = [cell for row in rows for cell in row[2:]]
    if arguments.before:
        lines = pathlib.Path(arguments.before).read_text().splitlines()
        before = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
        earlier = {tuple(row[:2]): row[2:] for row in before}
        header += [f"before: {column}" for column in columns]
        rows = [row + earlier[tuple(row[:2])] for row in rows]
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(row) + " |")
    print(f"\n{len(cells)} resumed trainings, {cells.count('exact')} exact.")


def train_all(scenarios, name, workers, cases):
    """Return two columns of the table: dicts from cases to cells."""
    make_group = importlib.import_module("support.worker_group").WorkerGroup
    failed = importlib.import_module("support.worker_group").WorkerFailed
    results = {case: {} for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for process in ("same", "new"):
            group = None
            for number, case in enumerate(cases):
                if group is None or group.has_ended:
                    group = make_group(workers, 1, tempfile.mkdtemp(dir=folder), fresh=True)
                own, copy = f"{folder}/{number}", f"{folder}/{number}-new"
                stages = [process]
                if process == "same":
                    os.makedirs(own)
                    stages = ["unbroken", "killed", "same"]
                for stage in stages:
                    asked = {"kind": case[0], "place": case[1], "folder": own}
                    asked["stage"] = stage if stage in ("unbroken", "killed") else "resumed"
                    if stage == "same":
                        shutil.copytree(own, copy)
                    if stage == "new":
                        shutil.rmtree(own)  # the datasets of files have its path
                        os.rename(copy, own)
                    try:
                        results[case][stage] = group.run(scenarios.train, **asked)
                    except failed as error:
                        results[case][stage] = str(error).strip().splitlines()[-1][:90]
                    print(name, stage, *case, file=sys.stderr, flush=True)
            group.close()
    return {
        f"{name}, {process} process": {
            case: cell(scenarios, case, [of[each] for each in ("unbroken", "killed", process)])
            for case, of in results.items()
        }
        for process in ("same", "new")
    }


def cell(scenarios, case, results):
    """Return the text of a cell."""
    if errors := [result for result in results if isinstance(result, str)]:
        return errors[0]
    left_out, twice, is_equal = scenarios.compared(*case, *results)
    if (left_out, twice, is_equal) == (0, 0, True):
        return "exact"
    return f"{left_out} left out, {twice} twice" + ", other weights" * (not is_equal)


if __name__ == "__main__":
    main()
