"""Which tests `make test` takes; `make test-all` takes all of them.

Of a test with workers, whose cases take seconds each, it takes two cases, on different topologies
where it has some; in the lane of Keras 2, where everything runs a second time, one case of every
test. Which ones is chance that does not change from run to run. No test is left out.
"""

import collections
import zlib

import pytest

from support import stacks


def add_options(parser):
    parser.addoption("--slow", action="store_true", help="run all tests, the slow ones too")


def keep_sample(config, items):
    """Leaves in a list of tests those that are taken, in their order."""
    if config.getoption("--slow"):
        return
    by_function = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: needs --slow"))
        by_function[item.nodeid.partition("[")[0]].append(item)
    kept = {case for cases in by_function.values() for case in sample(cases)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def sample(cases):
    """Returns those of the cases of a test that are taken; skipped ones only if all of them are."""
    can_run = [case for case in cases if not case.get_closest_marker("skip")]
    by_chance = sorted(can_run or cases[:1], key=number_of)
    first_of_topology = {topology_of(case): case for case in reversed(by_chance)}.values()
    by_chance.sort(key=lambda case: case not in first_of_topology)
    return by_chance[: most_of(cases[0])]


def most_of(test):
    """How many cases of a test are taken."""
    if stacks.IS_KERAS_2:
        return 1
    return 2 if test.path.parent.name == "multi_worker" else None


def number_of(case):
    return zlib.crc32(case.nodeid.encode() + bytes([stacks.IS_KERAS_2]))


def topology_of(case):
    """The topology of a test's worker group, as "2x2"; "" without one."""
    return str(case.callspec.params.get("group", "")) if hasattr(case, "callspec") else ""
