"""What a user can do wrong with the scope works, or is refused on all workers with the line."""

import numpy as np
import pytest
from scenarios import basics
from scenarios import scopes as scenarios

BUILD = "with strategy.scope():\n        model = ..."
OPTIMIZER = "with strategy.scope():\n        optimizer = Adam(...)\n        model.compile("
SAYS = {
    "all": "created outside the scope",  # on one worker a warning
    "model": BUILD,
    "loaded model": BUILD,
    "model, fit inside": BUILD,
    "layer": "/kernel' was created outside",
    "frozen layer": None,
    "optimizer": None,
    "built optimizer": OPTIMIZER,
    "second optimizer": None,
    "built second optimizer": OPTIMIZER,
    "metric": "The metric 'error' was created outside",
    "normalization": None,
}


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


@on("1x2", "2x1")
@pytest.mark.keras3_only("Keras 2 has checks and messages of its own")
class TestScopes:
    @pytest.mark.feature("models, optimizers, metrics created outside the scope: an error")
    def test_what_was_made_outside_is_refused_on_all_workers(self, group, tmp_path):
        for messages in group.run(scenarios.messages, folder=str(tmp_path)):
            assert {*messages} == {*SAYS}
            for name, expected in SAYS.items():
                if expected is None:
                    assert str(messages[name]) == "", name
                else:
                    assert expected in str(messages[name]), name
        # No collective had started: the group still works.
        group.run(basics.reduce_gradients, rule="adasum")

    @pytest.mark.feature("`compile` outside of the scope, `fit` inside")
    def test_where_compile_and_fit_stand_makes_no_difference(self, group):
        first, *others = (
            group.run(scenarios.fit_with, compiles_inside=compiles, fits_inside=fits)
            for compiles, fits in [(True, False), (False, False), (True, True), (False, True)]
        )
        assert len({*first[0]["loss"]}) == 2, "it learns"
        for results in (first, *others):
            for actual in results:
                for name, value in first[0].items():
                    np.testing.assert_array_equal(actual[name], value, err_msg=name)
