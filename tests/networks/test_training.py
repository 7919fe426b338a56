"""Training on several hosts, whatever happens to the network between them."""

import functools

import pytest
from support import network_cases
from support.network_cases import CASES

pytestmark = pytest.mark.version_independent

BY_NAME = {case.name: case for case in CASES}
# What is quick, the second one with timeouts that are shorter than the defaults.
QUICK = {"20 ms delay, 1 % loss": None, "worker 1 cut off in a step": 30}


@pytest.fixture(scope="module")
def digest_of(tmp_path_factory):
    """A function of an unbroken case: the digest of its weights."""

    @functools.cache
    def digest(case):
        outcomes = network_cases.run(case, tmp_path_factory.mktemp("unbroken"))
        (digest,) = {outcome.digest for outcome in outcomes.values()}
        assert digest, [outcome.output for outcome in outcomes.values()]
        return digest

    return digest


def check(case, folder, digest_of, timeout=None):
    outcomes = network_cases.run(case, folder, timeout=timeout)
    expected = digest_of(network_cases.unbroken(case))
    said = [network_cases.last_output(outcome) for outcome in outcomes.values()]
    assert not network_cases.violations(case, outcomes, expected), said


@pytest.mark.usefixtures("make_network")
@pytest.mark.slow
def test_slow_links_change_nothing_and_a_cut_is_named(tmp_path, digest_of):
    for name, timeout in QUICK.items():
        (tmp_path / name).mkdir()
        check(BY_NAME[name], tmp_path / name, digest_of, timeout)


OTHERS = [case.name for case in CASES if case.name not in QUICK and case != network_cases.UNBROKEN]


@pytest.mark.usefixtures("make_network")
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_whatever_happens_to_the_network(tmp_path, digest_of, name):
    check(BY_NAME[name], tmp_path, digest_of)
