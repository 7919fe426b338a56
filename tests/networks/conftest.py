"""Networks of several hosts, where this machine can have them."""

import pytest
from support import network


@pytest.fixture
def make_network():
    """A function of a number of hosts that returns a `network.Network`."""
    reason = network.why_not()
    if reason:
        pytest.skip(f"no network can be made here: {reason}")
    made = []

    def make(size):
        made.append(network.Network(size))
        return made[-1]

    yield make
    for each in made:
        each.close()
