"""Networks of several hosts, where this machine can have them."""

import contextlib

import pytest
from support import network


@pytest.fixture
def make_network():
    """A function of a number of hosts that returns a `network.Network`."""
    if reason := network.reason_to_skip():
        pytest.skip(f"cannot create network namespaces: {reason}")
    with contextlib.ExitStack() as stack:
        yield lambda size: stack.enter_context(network.Network(size))
