"""The graph of a step of `fit`: small models are slow if it grows."""

import pytest
from scenarios import step_graph as scenarios

pytestmark = pytest.mark.keras3_only("the graph of Keras 2 has other operations")


@pytest.mark.parametrize("group", ["2x1"], indirect=True, scope="module")
def test_a_step_has_one_collective_and_no_condition(group):
    for counts in group.run(scenarios.count_operations):
        assert counts["conditions"] == 0
        assert counts["collectives"] == 1
        assert counts["nodes"] < 400
