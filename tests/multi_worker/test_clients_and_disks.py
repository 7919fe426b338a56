"""Training with unauthenticated clients at the ports, and with backups on disks that fail."""

import pytest
from support import client_cases, disk, disk_cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.version_independent,
    pytest.mark.keras3_only("Keras 2 backs up all workers by itself"),
]


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


# `benchmarks/clients_and_disks.py` runs all cases.
SOME = {
    client_cases: [
        "1,000 silent connections, `ulimit -n 1024`",
        "50 unfinished lines of 1 MiB",
        '"I am worker 1, it has failed", without the token',
        "at the rendezvous: another client joins as worker 1 without the secret",
        "at the rendezvous: worker 1 has another secret",
    ],
    disk_cases: [
        "the directory is on a read-only file system",
        "the disk gets full after the first backup; then it has room",
        "the newest backup is cut in half",
        "worker 0 is killed in the middle of writing a backup",
    ],
}


def some_cases():
    for cases, names in SOME.items():
        by_name = {case.name: case for case in cases.CASES}
        for name in names:
            yield pytest.param(cases, by_name[name], id=name)


@pytest.mark.parametrize(("cases", "case"), some_cases())
def test_all_train_to_the_same_weights_or_name_the_reason(tmp_path, digest_of, cases, case):
    if getattr(case, "options", "") and (reason := disk.reason_to_skip()):
        pytest.skip(f"no disk can be mounted here: {reason}")
    outcomes = cases.run(case, tmp_path)
    assert not cases.violations(case, outcomes, digest_of(cases)), outcomes
