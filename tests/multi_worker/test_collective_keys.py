"""Collectives whose keys are used again: none is taken for another one."""

import numpy as np
import pytest
from scenarios import collective_keys as scenarios


@pytest.mark.parametrize("group", ["2x1"], indirect=True)
@pytest.mark.parametrize("in_context", [False, True])
def test_an_error_on_all_workers_is_not_the_end(group, in_context):
    """What it cuts off leaves something behind in TensorFlow, under its key."""
    for result in group.run(scenarios.continue_after_errors, in_context=in_context):
        assert result["errors"] > 5 and len(result["sums"]) > 20
        np.testing.assert_array_equal(result["sums"], 3.0)
