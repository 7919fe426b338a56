"""The corners of the table of versions: what is chosen, and what is made of their results."""

import argparse
import datetime
from pathlib import Path

import pytest
from support import corners
from support.corners import CORNERS, Corner

from tf_adasum import _version

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[3]

RESULT = {
    "tensorflow": "2.16.2",
    "keras": "3.12.4",
    "python": "3.12.1",
    "doctor": "ok",
    "passed": 412,
    "code": 0,
}


def test_corners_are_in_the_table_and_have_its_ends():
    columns = dict(zip(Corner._fields, map(set, zip(*CORNERS, strict=True)), strict=True))
    for name in Corner._fields:
        known = getattr(_version, name.upper())
        assert columns[name] <= {*known}
        assert {known[0], known[-1]} <= columns[name]


def test_the_tests_that_are_chosen_exist():
    for path in [*corners.TESTS, *corners.TESTS_OF_TODAY]:
        file, *names = path.split("::")
        assert (ROOT / file).exists(), file
        text = (ROOT / file).read_text() if names else ""
        assert all(name in text for name in names), path


def arguments(*tensorflow, today=False):
    return argparse.Namespace(tensorflow=list(tensorflow), today=today)


@pytest.fixture
def has(monkeypatch):
    """A function that sets which Pythons are installed."""

    def set_installed(*pythons):
        monkeypatch.setattr(corners, "interpreter", dict.fromkeys(pythons, "a path").get)

    return set_installed


def test_which_corners_are_chosen(has):
    has("3.10", "3.12", "3.13")
    assert corners.chosen(arguments()) == CORNERS
    assert corners.chosen(arguments("2.20")) == [Corner("2.20", "3.13", "3.13")]
    with pytest.raises(SystemExit, match=r"expected one of TensorFlow 2\.16, .*\['2\.99'\]"):
        corners.chosen(arguments("2.99"))
    has("3.11")
    with pytest.raises(SystemExit, match=r"Python 3\.13 is not here"):
        corners.chosen(arguments("2.21"))
    (corner,) = corners.chosen(arguments(today=True))
    assert corner.python == "3.11", "which make test-addons needs, too"


def test_every_day_another_corner(has, monkeypatch):
    has("3.10", "3.12", "3.13")

    class Day(datetime.date):
        number = 0

        @classmethod
        def today(cls):
            return cls.fromordinal(739000 + cls.number)

    monkeypatch.setattr(datetime, "date", Day)
    seen = []
    for Day.number in range(len(CORNERS)):
        seen += corners.chosen(arguments(today=True))
    assert sorted(seen) == sorted(CORNERS)


REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_one[x]"/>
<testcase classname="tests.unit.test_a" name="test_two"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="test_three"><error message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="test_four"><skipped message="why"/></testcase>
</testsuite></testsuites>"""


def test_counts_of_a_report(tmp_path):
    path = tmp_path / "report.xml"
    assert corners.counts(path) == {"passed": 0, "skipped": 0, "failed": []}
    path.write_text(REPORT)
    failed = ["tests/unit/test_a::test_two", "tests/unit/test_a::test_three"]
    assert corners.counts(path) == {"passed": 1, "skipped": 1, "failed": failed}


@pytest.mark.parametrize("wrong", [{"code": 1}, {"doctor": "FAIL"}, {"passed": 0}])
def test_what_is_good(wrong):
    assert corners.is_good(RESULT)
    assert not corners.is_good(RESULT | wrong)


def test_a_result_takes_the_place_of_the_one_before(tmp_path):
    path = tmp_path / "results.jsonl"
    corners.keep(path, RESULT | {"passed": 1})
    corners.keep(path, RESULT | {"tensorflow": "2.21.0", "keras": "3.15.1", "python": "3.13.0"})
    corners.keep(path, RESULT)
    assert len(path.read_text().splitlines()) == 2
    assert corners.results_in(path)[Corner("2.16", "3.12", "3.12")] == RESULT


def test_the_page_of_the_docs_is_up_to_date_and_its_results_are_good():
    text, results = corners.PAGE.read_text(), corners.results_in(corners.KEPT)
    assert corners.BEGIN in text and corners.renewed(text, results) == text
    assert all(map(corners.is_good, results.values()))
