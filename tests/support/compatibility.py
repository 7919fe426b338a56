"""A plugin that writes tests/COMPATIBILITY.md from the results of the tests.

    python -m pytest tests/multi_worker --compatibility tests/COMPATIBILITY.md

Rows of features whose tests are not among those of this run stay as they are in
tests/COMPATIBILITY.md.

A test marked with ``@pytest.mark.feature("name")`` fills a cell of the table: its row is the
feature, its column the topology of the worker group it ran on; without a group it ran here, on one
device. What stands below the table in tests/COMPATIBILITY.md is written by hand, and stays.
"""

import collections
import importlib.metadata
import pathlib
import platform
import re

DOCUMENT = pathlib.Path(__file__).parents[1] / "COMPATIBILITY.md"
BELOW = "\n## What does not run"

COLUMNS = ["1×1", "1×K", "N×1", "N×K"]

TEXT = """# What works where

Each column is a topology, written as workers × devices of each worker: one process with one device
(1×1) or several (1×K), several workers with one device each (N×1) or several (N×K).
✓ means that all tests of the feature passed on the topologies in parentheses. – means that no test
was run.

`make compatibility` writes this table. A shorter run of the tests replaces only the rows that it
has tested. On CPUs, with Python {python}, TensorFlow {tensorflow} and Keras {keras}.

| feature | {columns} | tested by |
| --- | {rules} | --- |
{rows}
"""


def pytest_addoption(parser):
    parser.addoption("--compatibility", metavar="FILE", help="write the table of features to FILE")


def pytest_configure(config):
    if config.getoption("--compatibility"):
        config.pluginmanager.register(Table(config.getoption("--compatibility")))


class Table:
    def __init__(self, path):
        self._path = path
        self._features = {}  # by test id: name, topology, file
        self._cells = collections.defaultdict(lambda: collections.defaultdict(set))
        self._files = collections.defaultdict(set)

    def pytest_collection_modifyitems(self, items):
        for item in items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            topology = parameters.get("group", "1x1")
            for marker in item.iter_markers("feature"):
                where = marker.kwargs.get("topology", topology)
                file = item.path.name
                self._features.setdefault(item.nodeid, []).append((marker.args[0], where, file))

    def pytest_runtest_logreport(self, report):
        reason = getattr(report, "wasxfail", None)
        if (report.skipped and reason is None) or (report.when != "call" and report.passed):
            return
        for feature, topology, file in self._features.get(report.nodeid, ()):
            self._cells[feature][column_of(topology)].add((reason or report.outcome, topology))
            self._files[feature].add(file)

    def pytest_sessionfinish(self):
        document = DOCUMENT.read_text()
        rows = rows_of(document) | {
            feature: f"| {feature} | {' | '.join(cell(cells[column]) for column in COLUMNS)} | "
            f"{', '.join(sorted(self._files[feature]))} |"
            for feature, cells in self._cells.items()
        }
        text = TEXT.format(
            python=platform.python_version(),
            tensorflow=importlib.metadata.version("tensorflow-cpu"),
            keras=importlib.metadata.version("keras"),
            columns=" | ".join(COLUMNS),
            rules=" | ".join("---" for _ in COLUMNS),
            rows="\n".join(sorted(rows.values(), key=by_file)),
        )
        _, heading, below = document.partition(BELOW)
        pathlib.Path(self._path).write_text(text + heading + below)


def by_file(row):
    """Return the key that groups rows by the files of their tests, then sorts them by feature."""
    _, feature, *_, files, _ = row.split("|")
    return files, feature.replace("`", "").lower()


def rows_of(text):
    """Return the rows of such a table by feature, without those of tests that are gone."""
    here = {path.name for path in DOCUMENT.parent.glob("**/test_*.py")}
    rows = re.findall(r"^(\| (.+?) \| .*? \| ([^|]*\.py) \|)$", text, re.MULTILINE)
    return {name: line for line, name, files in rows if {*files.split(", ")} <= here}


def column_of(topology):
    workers, devices = map(int, topology.split("x"))
    return COLUMNS[2 * (workers > 1) + (devices > 1)]


def cell(results):
    """What a cell says of its `(outcome, topology)`."""
    if not results:
        return "–"
    wrong = sorted({outcome for outcome, _ in results} - {"passed"})
    topologies = ", ".join(sorted({topology.replace("x", "×") for _, topology in results}))
    return f"{'; '.join(wrong) if wrong else '✓'} ({topologies})"
