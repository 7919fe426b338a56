"""Training with unauthenticated clients at the ports, and with backups on disks that fail."""

import json
from pathlib import Path

import pytest
from support import client_cases, disk, disk_cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.version_independent,
    pytest.mark.keras3_only("Keras 2 backs up all workers by itself"),
]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MODULES = {"unauthenticated_clients": client_cases, "disks": disk_cases}


@pytest.fixture(scope="module")
def digest_of(tmp_path_factory):
    """A function of a module of cases: the digest of an unbroken run's weights."""
    known = {}

    def digest(cases):
        if cases not in known:
            outcomes = cases.run(cases.UNBROKEN, tmp_path_factory.mktemp("unbroken"))
            (unbroken,) = outcomes if isinstance(outcomes, list) else [outcomes]
            (known[cases],) = {outcome.digest for outcome in unbroken.values()}
            assert known[cases], unbroken
        return known[cases]

    return digest


def cases_of_tables():
    """All cases. What a table shows as not held has to fail, or the table is old."""
    for table, cases in MODULES.items():
        kept = json.loads((RESULTS / f"{table}.json").read_text())
        for case in cases.CASES:
            wrong = kept.get(case.name, {}).get("adasum", {}).get("not held")
            marks = [pytest.mark.xfail(reason="; ".join(wrong), strict=True)] if wrong else []
            yield pytest.param(cases, case, marks=marks, id=f"{table}-{case.name}")


@pytest.mark.parametrize(("cases", "case"), cases_of_tables())
def test_all_train_to_the_same_weights_or_name_the_reason(tmp_path, digest_of, cases, case):
    if getattr(case, "options", "") and (reason := disk.reason_to_skip()):
        pytest.skip(f"no disk can be mounted here: {reason}")
    outcomes = cases.run(case, tmp_path)
    assert not cases.violations(case, outcomes, digest_of(cases)), outcomes
