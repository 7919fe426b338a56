"""Fixtures of the tests of the aggregation."""

import pytest


@pytest.fixture
def sums_by_a_ring(monkeypatch):
    """All sums go by all-reduce: the gathered bytes are those of the vectors alone."""
    monkeypatch.setattr("tf_adasum.aggregation.groups.GATHERED_SUM_BYTES", 0)
