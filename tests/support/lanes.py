"""A plugin that decides which tests are slow: `make test` runs the others, `make test-slow` these.

Each of both runs all of its own, so together they run everything. A test is slow if it is marked
`pytest.mark.slow`, because it takes more than eight seconds of CPU time. Of a test with workers,
and of every test under Keras 2, all cases are slow but those that are marked `pytest.mark.always`,
or the first case of the topology that most tests share. They are marked `further`, too.

`--quarter 2` leaves out three quarters of the files. Under Keras 2, tests marked
`pytest.mark.version_independent` are left out.
"""

import collections

import pytest

from support import keras_versions

# The folders of tests with workers.
FOLDERS_WITH_WORKERS = ("multi_worker", "networks", "clusters")

# If a test supports several topologies, its first case uses one of the first of these, so that few
# worker groups have to start; under Keras 2 one process, if that is enough.
PREFERRED_TOPOLOGIES = (("1x2", "2x1"), ("2x2",))
PREFERRED_UNDER_KERAS_2 = (("1x2",), ("2x1",), ("2x2",))
QUARTERS = 4


def pytest_addoption(parser):
    parser.addoption("--quarter", type=int, help="run a quarter of the files: a number from 0 on")


def pytest_collection_modifyitems(config, items):
    by_function, files = collections.defaultdict(list), sorted({item.path for item in items})
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    for cases in by_function.values():
        first = first_cases(cases)
        for case in cases:
            if case not in first:
                case.add_marker(pytest.mark.slow)
                case.add_marker(pytest.mark.further)
    if config.option.quarter is not None:
        files = files[config.option.quarter % QUARTERS :: QUARTERS]

    def is_kept(item):
        is_independent = item.get_closest_marker("version_independent")
        return item.path in files and not (keras_versions.IS_KERAS_2 and is_independent)

    config.hook.pytest_deselected(items=[item for item in items if not is_kept(item)])
    items[:] = [item for item in items if is_kept(item)]


def first_cases(cases):
    """Return the cases of a test that are not `further`; a skipped one only if all are skipped."""
    if not keras_versions.IS_KERAS_2 and cases[0].path.parent.name not in FOLDERS_WITH_WORKERS:
        return cases
    can_run = [case for case in cases if not case.get_closest_marker("skip")] or cases[:1]
    always = [case for case in can_run if case.get_closest_marker("always")]
    return always or sorted(can_run, key=rank)[:1]


def rank(case):
    """Order cases: slow ones last, then by the place of their topology among the preferred."""
    preferred = PREFERRED_UNDER_KERAS_2 if keras_versions.IS_KERAS_2 else PREFERRED_TOPOLOGIES
    places = (place for place, alike in enumerate(preferred) if topology_of(case) in alike)
    is_slow = case.get_closest_marker("slow") is not None
    return is_slow, next(places, len(preferred))


def topology_of(case):
    """The topology of a test's worker group, as "2x2"; "" without one."""
    parameters = case.callspec.params if hasattr(case, "callspec") else {}
    return str(parameters.get("group") or parameters.get("ucx_group") or "")
