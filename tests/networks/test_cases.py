"""What the cases ask of workers, and the cells of the table that they make."""

import json
from pathlib import Path

import pytest
from support import faults, network_cases
from support.network_cases import Case, complaints

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]
CASE = Case("a case", within=40.0)
LOST = "worker 1 (10.77.0.2:2222) was lost: it has sent nothing for 30 s"


def outcome(error=None, message="", *, digest=None, seconds=30.0, output=""):
    code = 0 if digest else 1
    return faults.Outcome(error, message, digest, seconds, seconds, code, output)


def lost(message=LOST, **options):
    return outcome("WorkerLostError", message, **options)


def trained(digest="abc"):
    return outcome(digest=digest)


SILENT = outcome(seconds=None)
OF_0 = LOST.replace("1", "0", 1)


@pytest.mark.parametrize(
    ("outcomes", "wrong"),
    [
        ([trained(), trained()], []),
        ([lost(), lost(OF_0)], []),
        ([lost(), outcome(output=f"tf_adasum: {OF_0}, in TensorFlow's start-up")], []),
        ([trained("other"), trained("other")], ["worker 0 has other", "worker 1 has other"]),
        ([lost(), SILENT], ["worker 1 reports nothing"]),
        ([lost(OF_0), lost(OF_0)], ["worker 0 names no other"]),
        ([lost("by /job:worker/task:1: unhealthy"), lost(OF_0)], []),
        (
            [lost("by /job:worker/task:0: unhealthy"), lost(OF_0)],
            ["worker 0 names no other"],
        ),
        (
            [lost("worker 0, worker 1 have not made the same calls")],
            ["worker 0 blames the program"],
        ),
        ([lost(seconds=41.0), lost(OF_0)], ["worker 0 takes 41 s, not 40"]),
        ([trained(), lost(OF_0)], ["not all workers train to the same end"]),
    ],
)
def test_complaints(outcomes, wrong):
    found = complaints(CASE, dict(enumerate(outcomes)), "abc")
    assert len(found) == len(wrong)
    for text, begin in zip(found, wrong, strict=True):
        assert text.startswith(begin)


def test_complaints_where_all_have_to_train():
    case = Case("a case", trains=True)
    assert complaints(case, {0: lost()}, "abc") == ["worker 0 does not continue"]


@pytest.fixture
def networks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import networks

    return networks


def test_cells(networks):
    assert networks.cell(CASE, {0: lost(), 1: lost(OF_0)}, "abc") == (
        "all: 30 s: `WorkerLostError`: worker 1 was lost: it has sent nothing for 30 s"
    )
    assert networks.cell(CASE, {0: trained()}, "abc") == "the same weights after 30 s"
    text = networks.cell(CASE, {0: SILENT, 1: trained()}, "abd")
    assert text.startswith("**Not held.** worker 0: **nothing is said**; worker 1: **other weights")


def test_cells_of_the_page_are_short(networks):
    text = networks.cell(CASE, {0: lost(), 1: lost(OF_0)}, "abc")
    assert networks.summary({"cell": text, "not held": []}) == "error, 30 s"
    text = networks.cell(CASE, {0: trained()}, "abc")
    assert networks.summary({"cell": text, "not held": []}) == "trains on, 30 s"
    text = networks.cell(CASE, {0: lost(LOST), 1: outcome("OSError", "it", seconds=31.0)}, "abc")
    wrong = ["worker 1 names no other worker"]
    result = {"cell": text, "not held": wrong}
    assert networks.summary(result) == "**no**, 30 to 31 s: names no other worker"
    assert networks.summary(None) == "–"


def test_the_pages_table_is_what_the_script_writes(networks):
    import exchange_extend

    page, kept = networks.PAGE.read_text(), json.loads(networks.KEPT.read_text())
    rows = networks.table(kept)
    assert exchange_extend.rewritten(page, {"networks": rows}) == page
    assert all(f"| {case.name} |" in rows for case in network_cases.CASES)
