"""Fixtures of the tests of backups."""

import signal

import pytest


@pytest.fixture(autouse=True)
def signals_as_before():
    """Signals without handlers: other tests may have left a custom loop without an end."""
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
