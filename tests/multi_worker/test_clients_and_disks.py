"""Training with unauthenticated clients at the ports, and with backups on disks that fail."""

import json
from pathlib import Path

import pytest
from support import client_cases, disk, disk_cases

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.keras3_only("Keras 2 backs up all workers by itself"),
]

ROOT = Path(__file__).parents[2]
MODULES = {"unauthenticated_clients": client_cases, "disks": disk_cases}
# What takes seconds.
QUICK = {
    "unauthenticated_clients": 'with the token: "I am worker 1, it has failed"',
    "disks": "worker 0 is killed in the middle of writing a backup",
}


@pytest.fixture(scope="module")
def digest_of(tmp_path_factory):
    """A function of a module of cases: the digest of an unbroken run's weights."""
    known = {}

    def digest(cases):
        if cases not in known:
            told = cases.play(cases.UNBROKEN, tmp_path_factory.mktemp("unbroken"))
            (outcomes,) = told if isinstance(told, list) else [told]
            (known[cases],) = {outcome.digest for outcome in outcomes.values()}
            assert known[cases], outcomes
        return known[cases]

    return digest


def check(table, name, folder, digest_of):
    cases = MODULES[table]
    (case,) = (each for each in cases.CASES if each.name == name)
    if getattr(case, "options", "") and (reason := disk.why_not()):
        pytest.skip(f"no disk can be mounted here: {reason}")
    told = cases.play(case, folder)
    assert not cases.complaints(case, told, digest_of(cases)), told
    if table == "unauthenticated_clients" and case.kind and not case.meets:
        assert "tf_adasum: the failure detector refuses" in told[0].output, "they have called"


def others():
    """The other cases. What a table shows as not held has to fail, or the table is old."""
    for table, cases in MODULES.items():
        kept = json.loads((ROOT / "benchmarks" / "results" / f"{table}.json").read_text())
        for case in cases.CASES:
            if case.name != QUICK[table]:
                wrong = kept.get(case.name, {}).get("adasum", {}).get("not held")
                marks = [pytest.mark.xfail(reason="; ".join(wrong), strict=True)] if wrong else []
                yield pytest.param(table, case.name, marks=marks)


@pytest.mark.slow
def test_a_client_with_the_token_is_not_taken_for_worker_1(tmp_path, digest_of):
    check("unauthenticated_clients", QUICK["unauthenticated_clients"], tmp_path, digest_of)


@pytest.mark.slow
def test_a_worker_may_be_killed_while_it_writes(tmp_path, digest_of):
    check("disks", QUICK["disks"], tmp_path, digest_of)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "name"), list(others()))
def test_whatever_happens(tmp_path, digest_of, table, name):
    check(table, name, tmp_path, digest_of)
