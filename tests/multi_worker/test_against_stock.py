"""What is no gradient is reduced exactly as TensorFlow's own strategy reduces it."""

import numpy as np
import pytest
from scenarios import basics

SAME_TOPOLOGY = pytest.mark.parametrize(
    "group, stock_group", [("2x1", "2x1"), ("3x1", "3x1")], indirect=True, scope="module"
)


@SAME_TOPOLOGY
@pytest.mark.parametrize("rule", ["adasum", "mean"])
@pytest.mark.slow
def test_other_reductions_are_the_stock_strategy_s(group, stock_group, rule):
    ours = group.run(basics.reduce_other_things, rule=rule)
    stock = stock_group.run(basics.reduce_other_things)
    for own, expected in zip(ours, stock, strict=True):
        assert own.keys() == expected.keys()
        for name in expected:
            np.testing.assert_array_equal(own[name], expected[name], err_msg=name)


@pytest.mark.parametrize("group", ["2x1", "2x2"], indirect=True, scope="module")
def test_other_reductions_open_no_files(group):
    for own in group.run(basics.reduce_without_descriptors):
        assert own["sum"] == own["expected"]
