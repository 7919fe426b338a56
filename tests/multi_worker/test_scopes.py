"""What a user can do wrong with the scope works, or is refused on all workers with the line."""

import pytest
from scenarios import basics, on
from scenarios import scopes as scenarios

BUILD = "was built or loaded outside of the scope of the strategy. Create models"
RUN = "strategy.run(train_step, args=(x, y))"
MESSAGES = {
    "all": "created outside the scope",  # on one worker a warning
    "model": BUILD,
    "model, fit inside": BUILD,
    "layer": "/kernel', which is not frozen, was created outside",
    "frozen layer": None,
    "optimizer": None,
    "built optimizer": "The optimizer 'adam",
    "metric": "The metric 'error' was created outside",
    "normalization": None,
    "metric of a loop": "The metric 'average' was created outside of the scope",
    "own metric of a loop": "The metric 'largest' was created outside of the scope",
    "step": RUN,
    "step that builds": RUN,
    "step in the scope": RUN,
    "step within a branch": "pass gradient_accumulation_steps to the optimizer",
    "step of each replica": None,
}


@on("1x2", "2x1")
@pytest.mark.keras3_only("Keras 2 has checks and messages of its own")
def test_what_was_made_outside_is_refused_on_all_workers(group):
    for messages in group.run(scenarios.messages):
        assert messages.keys() == MESSAGES.keys()
        for name, expected in MESSAGES.items():
            message = str(messages[name])
            assert expected in message if expected else message == "", (name, message)
    # No collective had started: the group still works.
    group.run(basics.reduce_gradients, rule="adasum")
