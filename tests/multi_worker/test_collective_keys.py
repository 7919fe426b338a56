"""Collectives whose keys are used again: none is taken for another one."""

import numpy as np
import pytest
from scenarios import collective_keys as scenarios


@pytest.mark.parametrize("group", ["2x1"], indirect=True, scope="module")
@pytest.mark.parametrize("together", [False, True])
def test_an_error_on_all_workers_is_not_the_end(group, together):
    """What it cuts off leaves something behind in TensorFlow, under its key."""
    for result in group.run(scenarios.go_on_after_errors, together=together):
        assert result["errors"] > 5 and len(result["sums"]) > 20
        np.testing.assert_array_equal(result["sums"], 3.0)
