"""The table of docs/data.md: in how many calls each step has the rows of Keras without a strategy.

    PYTHONPATH=.:tests:tests/multi_worker python tests/support/rows_table.py --workers 1 2 4

It prints the table, and then each call that differs. It takes about fifteen minutes on two cores.
"""

import argparse
import sys
import tempfile

from scenarios import rows_by_step as scenarios

from support.worker_group import WorkerFailed, WorkerGroup


def rows_of(group, kind, options):
    """The rows of each step; of a group that fails the error."""
    try:
        results = group.run(scenarios.rows_of_steps, timeout=900, kinds=[kind], **options)
    except WorkerFailed as error:
        return {}, [f"{kind}: {error}"]
    return scenarios.steps_of_calls(results), []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--kinds", nargs="+", default=scenarios.KINDS)
    parser.add_argument("--calls", nargs="+", default=scenarios.CALLS)
    parser.add_argument("--executions", type=int, default=1, help="steps_per_execution")
    parser.add_argument("--built", action="store_true", help="models with an input shape")
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("calls", "executions", "built")}
    alone = scenarios.rows_of_steps(None, arguments.kinds, **options)
    expected = scenarios.steps_of_calls([alone])
    equal, problems = {}, []
    for workers in arguments.workers:
        group = None
        for kind in arguments.kinds:
            if group is None or group.has_ended:
                group = WorkerGroup(workers, 1, tempfile.mkdtemp())
            found, failures = rows_of(group, kind, options)
            problems += failures
            own = [call for call in expected if call.split("/")[0] == kind]
            wrong = [call for call in own if found.get(call) != expected[call]]
            equal[kind, workers] = f"{len(own) - len(wrong)} of {len(own)}"
            for call in wrong:
                got = found.get(call)
                problems.append(f"{workers} workers, {call}: {got} instead of {expected[call]}")
            print(workers, kind, equal[kind, workers], file=sys.stderr, flush=True)
        group.close()
    print(f"| data | {' | '.join(f'{each} workers' for each in arguments.workers)} |")
    print("| --- |" + " --- |" * len(arguments.workers))
    for kind in arguments.kinds:
        print(f"| {kind} | {' | '.join(equal[kind, each] for each in arguments.workers)} |")
    print(*problems, sep="\n")


if __name__ == "__main__":
    main()
