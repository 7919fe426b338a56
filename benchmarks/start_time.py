"""Measure how long workers need to find each other, before TensorFlow starts.

    python benchmarks/start_time.py [--repeats 5]

The workers are bare processes of this machine (tests/support/many_processes.py). They know either
all addresses, as from TF_CONFIG, or only worker 0's address. Both include the comparison of the
settings. Writes benchmarks/results/DATE-start_time.md.
"""

import argparse
import os
import subprocess
import sys

import report

PROGRAM = report.ROOT / "tests" / "support" / "many_processes.py"
COUNTS = (16, 64, 128, 256)
WAYS = {"listed": "all addresses, s", "joined": "worker 0's address, s"}
SECONDS = 300


def seconds_of(count, way):
    """Return for how many seconds workers have looked for each other; all must succeed."""
    command = [sys.executable, "-S", str(PROGRAM), str(count), way]
    environment = {**os.environ, "PYTHONPATH": str(report.ROOT)}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    failed, seconds = ran.stdout.split()[-2:]
    if failed != "0":
        raise RuntimeError(f"{failed} of {count} workers failed:\n{ran.stderr[-2000:]}")
    return float(seconds)


def main():
    """Measure, and write the report and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="of each cell")
    repeats = parser.parse_args().repeats
    found = {(count, way): [] for count in COUNTS for way in WAYS}
    for _ in range(repeats):
        for (count, way), values in found.items():
            values.append(seconds_of(count, way))
            print(count, way, f"{values[-1]:.2f} s", flush=True)
    rows = [[count, *(report.quartiles(found[count, way]) for way in WAYS)] for count in COUNTS]
    body = report.table(["workers", *WAYS.values()], rows) + f"\n\nMedian (quartiles) of {repeats}."
    report.write("start_time", "Seconds until bare processes have found each other", body)


if __name__ == "__main__":
    main()
