"""A plugin that selects the cases of `make test` and `make test-more`; `make test-all` runs all.

If nothing is selected by hand, a test runs only some of its cases:

- of a test with workers, and of every test under Keras 2: the cases that are marked
  `pytest.mark.always`, or one case if none is marked;
- of any other test: the cases marked `always`, and so many others that every value of each of its
  parameters occurs.

The selection is pseudo-random and the same in every run. Slow tests are skipped. Under Keras 2,
tests marked `pytest.mark.version_independent` are left out. Everything that is selected with
`--slow`, `-k`, `-m`, `--last-failed` or by its name, file.py or file.py::test, runs; with
`--sample`, a sample of it.
"""

import collections
import zlib

import pytest

from support import keras_versions

# The folders of tests with workers.
FOLDERS_WITH_WORKERS = ("multi_worker", "networks", "clusters")

# If a test supports several topologies, it uses one of the first, so that few worker groups have to
# start and few replicas to be traced; under Keras 2 one process, if that is enough.
PREFERRED_TOPOLOGIES = (("1x2", "2x1"), ("2x2",))
PREFERRED_UNDER_KERAS_2 = (("1x2",), ("2x1",), ("2x2",))


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run all tests, the slow ones too")
    parser.addoption(
        "--sample", action="store_true", help="run only a sample of the selected tests"
    )


def pytest_collection_modifyitems(config, items):
    if is_selected_by_hand(config):
        return
    by_function = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: needs --slow"))
        by_function[item.nodeid.partition("[")[0]].append(item)
    kept = {case for cases in by_function.values() for case in sample(cases)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def is_selected_by_hand(config):
    option = config.option
    if option.sample:
        return False
    by_name = any(argument.partition("::")[0].endswith(".py") for argument in config.args)
    by_word = option.keyword or option.markexpr or getattr(option, "lf", False)
    return bool(option.slow or by_word or by_name)


def sample(cases):
    """Return the cases of a test that run; a skipped case only if all are skipped."""
    can_run = [case for case in cases if not case.get_closest_marker("skip")]
    always = [case for case in can_run if case.get_closest_marker("always")]
    by_chance = sorted(can_run or cases[:1], key=stable_hash)
    if keras_versions.IS_KERAS_2 and cases[0].get_closest_marker("version_independent"):
        return []
    if keras_versions.IS_KERAS_2 or cases[0].path.parent.name in FOLDERS_WITH_WORKERS:
        return always or sorted(by_chance, key=topology_rank)[:1]
    return list(dict.fromkeys([*always, *each_choice(by_chance)]))


def each_choice(cases):
    """Return the first case, and others until every value of each parameter has occurred."""
    chosen = cases[:1]
    missing = set().union(*map(values_of, cases)) - values_of(cases[0])
    while missing:
        chosen.append(max(cases, key=lambda case: len(values_of(case) & missing)))
        missing -= values_of(chosen[-1])
    return chosen


def values_of(case):
    """The parameters of a case, each with its value as a text."""
    parameters = case.callspec.params if hasattr(case, "callspec") else {}
    return {(name, str(value)) for name, value in parameters.items()}


def stable_hash(case):
    return zlib.crc32(case.nodeid.encode() + bytes([keras_versions.IS_KERAS_2]))


def topology_rank(case):
    """Return where the topology of a case stands among the preferred ones, or behind all."""
    preferred = PREFERRED_UNDER_KERAS_2 if keras_versions.IS_KERAS_2 else PREFERRED_TOPOLOGIES
    places = (place for place, alike in enumerate(preferred) if topology_of(case) in alike)
    return next(places, len(preferred))


def topology_of(case):
    """The topology of a test's worker group, as "2x2"; "" without one."""
    parameters = case.callspec.params if hasattr(case, "callspec") else {}
    return str(parameters.get("group") or parameters.get("ucx_group") or "")
