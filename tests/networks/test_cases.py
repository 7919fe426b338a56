"""What the cases ask of workers, and the cells of the table that they make."""

import json

import pytest
from support import faults, network_cases
from support.network_cases import Case, violations

pytestmark = pytest.mark.version_independent

CASE = Case("a case", seconds_to_report=40.0)
WITH_TRAINING = Case("a case", must_train=True)
LOST = "worker 1 (10.77.0.2:2222) was lost: it has sent nothing for 30 s"
OF_0 = LOST.replace("1", "0", 1)


def outcome(error=None, message="", *, digest=None, seconds=30.0, output=""):
    code = 0 if digest else 1
    return faults.Outcome(error, message, digest, seconds, seconds, code, output)


def lost(message=LOST, seconds=30.0):
    return outcome("WorkerLostError", message, seconds=seconds)


SAME, OTHER = outcome(digest="abc"), outcome(digest="other")
SILENT = outcome(seconds=None)


@pytest.mark.parametrize(
    ("case", "outcomes", "wrong"),
    [
        (CASE, [SAME, SAME], []),
        (CASE, [lost(), lost(OF_0)], []),
        (CASE, [lost(), outcome(output=f"tf_adasum: {OF_0}, in TensorFlow's start-up")], []),
        (CASE, [OTHER, OTHER], ["worker 0 has other", "worker 1 has other"]),
        (CASE, [lost(), SILENT], ["worker 1 reports nothing"]),
        (CASE, [lost(OF_0), lost(OF_0)], ["worker 0 names no other"]),
        (CASE, [lost("by /job:worker/task:1: unhealthy"), lost(OF_0)], []),
        (CASE, [lost("by /job:worker/task:0: no"), lost(OF_0)], ["worker 0 names no other"]),
        (CASE, [lost("worker 0, worker 1 have not made the same calls")], ["worker 0 blames the"]),
        (CASE, [lost(seconds=41.0), lost(OF_0)], ["worker 0 takes 41 s, not 40"]),
        (CASE, [SAME, lost(OF_0)], ["not all workers train to the same end"]),
        (WITH_TRAINING, [lost()], ["worker 0 does not continue"]),
    ],
)
def test_complaints(case, outcomes, wrong):
    found = violations(case, dict(enumerate(outcomes)), "abc")
    assert len(found) == len(wrong)
    assert all(map(str.startswith, found, wrong)), found


@pytest.mark.parametrize(
    ("outcomes", "text", "short"),
    [
        (
            [lost(), lost(OF_0)],
            "all: 30 s: `WorkerLostError`: worker 1 was lost: it has sent nothing for 30 s",
            "error, 30 s",
        ),
        ([SAME], "the same weights after 30 s", "trains on, 30 s"),
        (
            [outcome("OSError", "no", seconds=31.0), lost(OF_0)],
            "**Not held.** worker 0: 31 s: `OSError`: no; worker 1: 30 s: `WorkerLostError`: "
            "worker 0 was lost: it has sent nothing for 30 s",
            "**no**, 30 to 31 s: names no other worker",
        ),
        (
            [SILENT, OTHER],
            "**Not held.** worker 0: **nothing is said**; worker 1: **other weights** after 30 s",
            "**no**: reports nothing, has other weights than without it, not all workers train to "
            "the same end",
        ),
    ],
)
def test_cells_of_the_results_and_of_the_page(load, outcomes, text, short):
    networks, told = load("networks"), dict(enumerate(outcomes))
    assert networks.cell(CASE, told, "abc") == text
    result = {"cell": text, "not held": violations(CASE, told, "abc")}
    assert networks.summary(result) == short


def test_the_pages_table_is_what_the_script_writes(load):
    networks, generated_tables = load("networks"), load("generated_tables")
    page, kept = networks.PAGE.read_text(), json.loads(networks.KEPT.read_text())
    rows = networks.table(kept)
    assert generated_tables.rewritten(page, {"networks": rows}) == page
    assert all(f"| {case.name} |" in rows for case in network_cases.CASES)
