"""A plugin that measures how fast this machine is now, with an import of TensorFlow.

Time limits of tests are seconds of a quiet machine with two cores times `PACE`. If a test fails
while its processes wait for a core, the report of the failure says so.
"""

import os
import time
from pathlib import Path

import pytest

_begin = time.monotonic()
import tensorflow  # noqa: E402, F401 - what is measured

QUIET_SECONDS = 5.0  # of the import on a quiet machine with two cores
SLOWEST = 8.0
PACE = min(max(1.0, (time.monotonic() - _begin) / QUIET_SECONDS), SLOWEST)
STARVED = 0.2  # share of a test's time in which its process could run, but had no core


def seconds_without_a_core():
    """Return how long the main thread has waited for a core, as Linux counts it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and call.when == "call":
        waited = seconds_without_a_core() - item.stash[_WAITED]
        load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
        if waited > STARVED * call.duration or load > 2:
            text = f"This test had no core for {waited:.1f} of its {call.duration:.1f} s, and each "
            text += f"core has {load:.1f} processes; all time limits were {PACE:.1f} times as long."
            report.sections.append(("Starved", text))
    return report


_WAITED = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_WAITED] = seconds_without_a_core()
