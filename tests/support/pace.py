"""A plugin: how slow this machine is now, and which failed tests had no core.

Time limits of tests are seconds of a quiet machine with two cores times `PACE`, which
tests/conftest.py measures with an import of TensorFlow. If a test fails while its processes wait
for a core, the report of the failure says so.
"""

import os
from pathlib import Path

import pytest

# Set by tests/conftest.py, also for the processes of tests.
VARIABLE = "SECONDS_OF_TENSORFLOW_IMPORT"
QUIET_SECONDS = 3.0  # of the import on a quiet machine with two cores
SLOWEST = 8.0
# Benchmarks, which do not measure it, wait twice as long.
PACE = min(max(1.0, float(os.environ.get(VARIABLE, 2 * QUIET_SECONDS)) / QUIET_SECONDS), SLOWEST)
STARVED = 0.2  # share of a test's time in which its process could run, but had no core
WAITED = pytest.StashKey()


def seconds_without_a_core():
    """Return how long the main thread has waited for a core, as Linux counts it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    item.stash[WAITED] = seconds_without_a_core()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and call.when == "call":
        waited = seconds_without_a_core() - item.stash[WAITED]
        load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
        if waited > max(1.0, STARVED * call.duration):
            text = f"This test had no core for {waited:.1f} of its {call.duration:.1f} s, and each "
            text += f"core has {load:.1f} processes; all time limits were {PACE:.1f} times as long."
            report.sections.append(("Starved", text))
    return report
