"""Make a worker fail at random moments, and check that the other one names it and its exception.

    python benchmarks/failure_naming.py [--moments 20] [--seed 0]

Two workers train while other processes keep the machine busy. An exception is raised in the main
thread of one of them, at any line, in turn in `fit`, `train_on_batch` and a training loop within
`strategy.working_together()`. The other worker must raise a `WorkerLostError` with the exception
of the failed worker. When worker 0 exits, TensorFlow's coordination service also ends, which soon
breaks the collectives of the other worker.

Writes benchmarks/results/DATE-failure_naming.md.
"""

import argparse
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile

import numpy as np
import report

sys.path[:0] = [str(report.ROOT / "tests" / "multi_worker"), str(report.ROOT / "tests")]

from support import faults  # noqa: E402 - found on the path above

CALLS = ("fit", "train_on_batch", "working_together")
LONGEST = 1.0  # maximum seconds of training before the exception
EPOCHS = 40  # take longer than LONGEST
LIMIT = 60.0  # seconds to wait for the other worker


def burn():
    while True:
        pass


def run(victim, call, after):
    """Run one failure; return the other worker's outcome, and what is wrong with it, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        (outcome,) = faults.run(
            pathlib.Path(folder),
            fault="raise",
            injection_point="any",
            victim=victim,
            call=call,
            after=after,
            epochs=EPOCHS,
            limit=LIMIT,
        ).values()
    is_right = (
        outcome.error == "WorkerLostError"
        and f"worker {victim} (" in outcome.message
        and "ArithmeticError: the fault of this worker" in outcome.message
    )
    wrong = (
        "" if is_right else f"{outcome.error}: {outcome.message[:200]!r} ({call}, {after:.3f} s)"
    )
    return outcome, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=20, help="of each worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--burners", type=int, default=2, help="processes that keep cores busy")
    arguments = parser.parse_args()
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(arguments.burners)]
    for burner in burners:
        burner.start()
    rows, failures, loads = [], [], []
    try:
        for victim in (0, 1):
            rng, right, seconds = random.Random(arguments.seed + victim), 0, []
            for moment in range(arguments.moments):
                call, after = CALLS[moment % len(CALLS)], rng.uniform(0.001, LONGEST)
                outcome, wrong = run(victim, call, after)
                loads.append(os.getloadavg()[0])
                right += not wrong
                seconds += [outcome.seconds] if outcome.seconds is not None else []
                failures += [wrong] if wrong else []
                print(victim, call, f"{after:.3f} s", outcome.seconds, wrong or "right", flush=True)
            spread = f"{np.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
            rows.append([f"worker {victim}", arguments.moments, right, spread])
    finally:
        for burner in burners:
            burner.kill()
    header = ["who fails", "times", "named with its exception", "seconds to the other's error"]
    report.write(
        "failure_naming",
        "A worker raises at a random moment: what the other one says",
        f"Two workers of one device, and {arguments.burners} processes that keep the machine busy, "
        "beside what else runs there: load averages of a minute were "
        f"{min(loads):.0f} to {max(loads):.0f}. "
        f"An exception within the first {LONGEST} s of training, seed {arguments.seed}, in `fit`, "
        "`train_on_batch` or `strategy.working_together()` by turns. Seconds from the exception to "
        "the other worker's: median, least and most.\n\n"
        + report.table(header, rows)
        + "".join(f"\n\nNot named: {failure}" for failure in failures),
    )
    if failures:
        sys.exit("not all were named")


if __name__ == "__main__":
    main()
