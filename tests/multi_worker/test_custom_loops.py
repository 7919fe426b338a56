"""Custom loops whose steps do not run on each replica: the error says what to write."""

import pytest
from scenarios import custom_loops as scenarios


@pytest.mark.keras3_only("variables of Keras 2 are not watched")
@pytest.mark.parametrize("group", ["1x2", "2x1"], indirect=True, scope="module")
def test_a_metric_that_was_created_outside_of_the_scope_is_refused(group):
    for own, name in ((False, "average"), (True, "largest")):
        for result in group.run(scenarios.metric_outside, own=own):
            message = str(result["message"])
            assert f"The metric {name!r} was created outside of the scope" in message


@pytest.mark.keras3_only("optimizers of Keras 2 are not watched outside of the scope")
@pytest.mark.parametrize("group", ["1x2", "2x1", "2x2"], indirect=True, scope="module")
@pytest.mark.parametrize("rule", ["adasum", "mean"])
def test_says_what_to_write(group, rule):
    for result in group.run(scenarios.wrong_loops, rule=rule):
        for name, error in zip(result["names"], result["errors"], strict=True):
            assert "strategy.run(train_step, args=(x, y))" in error, name
        assert result["moved"]


@pytest.mark.keras3_only("steps of Keras 2 begin elsewhere")
@pytest.mark.parametrize("group", ["1x2", "2x1"], indirect=True, scope="module")
def test_a_step_within_a_branch_says_how_to_accumulate(group):
    for result in group.run(scenarios.step_within_a_branch):
        assert "pass gradient_accumulation_steps to the optimizer" in str(result["message"])
