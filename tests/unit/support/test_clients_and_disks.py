"""What the cases of unauthenticated clients and of disks require, and the tables they make."""

import json
from pathlib import Path

import pytest
from support import client_cases, disk_cases, faults
from support.disk_cases import Outcome, Start

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[3]


def of_client(digest="abc", error=None, message="", seconds=9.0):
    return faults.Outcome(error, message, digest, seconds, seconds, 0, "")


REFUSED = "Received: a secret on worker 0, another secret on worker 1"


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
    case = client_cases.Case("a case", trains=trains)
    found = client_cases.complaints(case, dict(enumerate(outcomes)), "abc")
    assert len(found) == len(wrong), found
    assert all(text.startswith(begin) for text, begin in zip(found, wrong, strict=True))


def of_disk(digest="abc", error=None, message="", code=0, seconds=5.0):
    return Outcome(error, message, digest, seconds, 0, code, "")


NAMED = of_disk(None, "OSError", "cannot be written to /tmp/disk/backup", 1)
UNNAMED = of_disk(None, "OSError", "no", 1)
DEAD = of_disk(None, code=-9)


@pytest.mark.parametrize(
    ("starts", "told", "wrong"),
    [
        ([Start()], [[of_disk(), of_disk()]], []),
        ([Start()], [[of_disk("abd"), of_disk()]], ["worker 0, start 1, has other weights"]),
        ([Start()], [[NAMED]], ["worker 0, start 1, does not continue"]),
        ([Start(), Start()], [[NAMED], [of_disk()]], []),
        ([Start(), Start()], [[UNNAMED], [of_disk()]], ["worker 0, start 1, names neither"]),
        ([Start(), Start()], [[DEAD], [of_disk()]], ["worker 0, start 1, reports nothing"]),
        (
            [Start(killed=True), Start()],
            [[DEAD, DEAD], [of_disk()]],
            ["worker 1, start 1, reports"],
        ),
        ([Start()], [[of_disk(code=None)]], ["worker 0, start 1, does not end"]),
        ([Start()], [[of_disk(seconds=46.0)]], ["worker 0, start 1, takes 46 s"]),
    ],
)
def test_complaints_of_disks(starts, told, wrong):
    case = disk_cases.Case("a case", tuple(starts))
    found = disk_cases.complaints(case, [dict(enumerate(each)) for each in told], "abc")
    assert len(found) == len(wrong), found
    assert all(text.startswith(begin) for text, begin in zip(found, wrong, strict=True))


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import clients_and_disks

    return clients_and_disks


def test_cells(script):
    case = disk_cases.Case("a case", (Start(), Start()))
    told = [{0: NAMED, 1: NAMED}, {0: of_disk(), 1: of_disk()}]
    assert script.cell_of_disk(case, told, "abc") == (
        "1. all: `OSError`: cannot be written to …/backup<br>2. all: from the beginning: the same "
        "weights"
    )
    assert script.cell_of_disk(case, told, "abd").startswith("**Not held.** 1. all: `OSError`")
    assert script.cell_of_clients(client_cases.CASES[0], {0: of_client()}, "abc") == (
        "the same weights after 9 s"
    )


def test_cells_of_the_page_are_short(script):
    cell = "**Not held.** 1. killed<br>2. `OSError`: [Errno 5] /backup: from here"
    result = {"cell": cell, "not held": ["worker 0, start 2, reports nothing"]}
    assert script.summary_of_disk(result) == "1. killed; 2. `OSError` (**no**: reports nothing)"
    result = {"cell": "all: from epoch 2: the same weights", "not held": []}
    assert script.summary_of_disk(result) == "resumes at epoch 2"
    assert script.summary_of_disk(None) == "–"


def test_the_pages_tables_are_what_the_script_writes(script):
    import exchange_extend

    for table in script.TABLES:
        page = table.page.read_text()
        rows = table.text(json.loads(table.kept.read_text()))
        assert exchange_extend.rewritten(page, {table.name: rows}) == page
        assert all(f"| {case.name} |" in rows for case in table.cases.CASES)
