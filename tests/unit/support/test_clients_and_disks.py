"""What the cases of unauthenticated clients and of disks require, and the tables they make."""

import json
from pathlib import Path

import pytest
from support import client_cases, disk_cases, faults
from support.disk_cases import Outcome, Start

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[3]


def of_client(digest="abc", error=None, message="", seconds=9.0):
    return faults.Outcome(error, message, digest, seconds, seconds, 0, "")


def of_disk(digest="abc", error=None, message="", code=0, seconds=5.0):
    return Outcome(error, message, digest, seconds, 0, code, "")


def assert_begin_with(found, expected):
    assert len(found) == len(expected), found
    assert all(text.startswith(begin) for text, begin in zip(found, expected, strict=True)), found


REFUSED = "Received: a secret on worker 0, a different secret on worker 1"


@pytest.mark.parametrize(
    ("trains", "outcomes", "wrong"),
    [
        (True, [of_client(), of_client()], []),
        (True, [of_client("abd"), of_client()], ["worker 0 has other", "not all workers"]),
        (True, [of_client(None, "OSError", "too many")] * 2, ["worker 0 does", "worker 1 does"]),
        (True, [of_client(seconds=61.0)], ["worker 0 takes 61 s"]),
        (False, [of_client(None, "ValueError", REFUSED)] * 2, []),
        (False, [of_client()] * 2, ["they train in spite"]),
    ],
)
def test_complaints_of_clients(trains, outcomes, wrong):
    case = client_cases.Case("a case", must_train=trains)
    assert_begin_with(client_cases.violations(case, dict(enumerate(outcomes)), "abc"), wrong)


GOOD = of_disk()
NAMED = of_disk(None, "OSError", "cannot be written to /tmp/disk/backup", 1)
UNNAMED = of_disk(None, "OSError", "no", 1)
DEAD = of_disk(None, code=-9)
ONE, TWO, KILLED = [Start()], [Start(), Start()], [Start(killed=True), Start()]


@pytest.mark.parametrize(
    ("starts", "outcomes", "wrong"),
    [
        (ONE, [[GOOD, GOOD]], []),
        (ONE, [[of_disk("abd"), GOOD]], ["worker 0, start 1, has other weights"]),
        (ONE, [[NAMED]], ["worker 0, start 1, does not continue"]),
        (TWO, [[NAMED], [GOOD]], []),
        (TWO, [[UNNAMED], [GOOD]], ["worker 0, start 1, names neither"]),
        (TWO, [[DEAD], [GOOD]], ["worker 0, start 1, reports nothing"]),
        (KILLED, [[DEAD, DEAD], [GOOD]], ["worker 1, start 1, reports"]),
        (ONE, [[of_disk(code=None)]], ["worker 0, start 1, does not end"]),
        (ONE, [[of_disk(seconds=46.0)]], ["worker 0, start 1, takes 46 s"]),
    ],
)
def test_complaints_of_disks(starts, outcomes, wrong):
    case = disk_cases.Case("a case", tuple(starts))
    by_rank = [dict(enumerate(each)) for each in outcomes]
    assert_begin_with(disk_cases.violations(case, by_rank, "abc"), wrong)


def test_the_pages_tables_are_what_the_script_writes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import clients_and_disks
    import generated_tables

    for table in clients_and_disks.TABLES:
        page = table.page.read_text()
        rows = table.text(json.loads(table.kept.read_text()))
        assert generated_tables.rewritten(page, {table.name: rows}) == page
        assert all(f"| {case.name} |" in rows for case in table.cases.CASES)
