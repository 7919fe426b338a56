"""Training on several hosts, whatever happens to the network between them."""

import functools

import pytest
from support import network_cases
from support.network_cases import CASES
from support.pace import PACE

pytestmark = pytest.mark.version_independent

# Seconds after which a silent worker is lost, where workers have to fail: less than the default of
# 30, which benchmarks/networks.py measures.
TIMEOUT = min(12 * PACE, 30)
ALWAYS = ("20 ms delay, 1 % loss", "worker 1 cut off in a step")


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


@pytest.mark.usefixtures("make_network")
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.always] * (case.name in ALWAYS))
        for case in CASES
        if case != network_cases.UNBROKEN
    ],
)
def test_whatever_happens_to_the_network(tmp_path, digest_of, case):
    timeout = TIMEOUT if case.must_train is False else None
    outcomes = network_cases.run(case, tmp_path, timeout=timeout)
    expected = digest_of(network_cases.unbroken(case))
    said = [network_cases.last_output(outcome) for outcome in outcomes.values()]
    assert not network_cases.violations(case, outcomes, expected), said
