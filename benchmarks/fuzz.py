"""Run the fuzz tests with all their random cases, and report how many hypothesis has run.

    python benchmarks/fuzz.py [--times N] [--seed S]

The tests call the public API with random arguments, and compare the aggregation of gradients of
random shapes, dtypes and values with a float64 oracle. Writes benchmarks/results/DATE-fuzz.md.
"""

import argparse
import os
import re
import subprocess
import sys
import time

import report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tests = sorted(map(str, (report.ROOT / "tests" / "unit").rglob("test_fuzz_*.py")))
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "--hypothesis-show-statistics", *tests]
    ended = subprocess.run(
        [*command, f"--hypothesis-seed={arguments.seed}"],
        cwd=report.ROOT,
        env={**os.environ, "TF_ADASUM_FUZZ": str(arguments.times)},
        capture_output=True,
        text=True,
        timeout=3600 * arguments.times,
    )
    seconds = time.monotonic() - begin
    counts = {}
    for name, block in re.findall(r"^(tests/\S+):\n(.*?)Stopped", ended.stdout, re.M | re.S):
        passing, failing = re.search(r"(\d+) passing, (\d+) failing", block).groups()
        counts[name.rpartition("::")[2]] = int(passing), int(failing)
    total = sum(passing for passing, _ in counts.values())
    rows = [[f"`{name}`", *numbers] for name, numbers in counts.items()]
    report.write(
        "fuzz",
        "Random arguments and gradients",
        f"{total} cases passed, {sum(failing for _, failing in counts.values())} failed, in "
        f"{seconds:.0f} s. The last line of pytest: `{ended.stdout.strip().splitlines()[-1]}`.\n\n"
        + report.table(["test", "cases that passed", "that failed"], rows),
    )
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
