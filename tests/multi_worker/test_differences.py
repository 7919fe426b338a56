"""Workers that do not run the same program: both raise within seconds, and name the difference."""

import pytest
from scenarios import differences
from support.pace import PACE

from tf_adasum.errors import see

pytestmark = pytest.mark.keras3_only("workers compare the settings of a call with Keras 3")

SECONDS = 15 * PACE  # with what is trained before the difference

SETTINGS, CALLS = "different settings. ", "have not made the same calls: "

# What both workers raise, case by case: what it says, and the code of the answer.
OUTCOMES = {
    "another width": (CALLS, "kernel (float32[4, 3])", "kernel (float32[4, 5])", "TFA-503"),
    "a frozen layer": (SETTINGS, "trainable=True", "trainable=False", "TFA-511"),
    "other weights": ("hold different values of", "dense/kernel", "(worker 1)", "TFA-508"),
    "another optimizer": (SETTINGS, "worker 0: SGD", "worker 1: Adam", "TFA-511"),
    "another wrapper": ("same settings", "local_steps=1", "local_steps=2", "TFA-310"),
    "another loss": (SETTINGS, "compile(loss)", "'mse'", "'mae'", "TFA-511"),
    "validation on one worker": (SETTINGS, "fit(validation_data)", "None", "TFA-511"),
    "another kind of data": (SETTINGS, "worker 0: arrays", "tf.data.Dataset", "TFA-511"),
    "learning rate set by a callback": ("worker 0: 0.1, worker 1: 0.2", "TFA-511"),
    "train_on_batch and test_on_batch": ("test_on_batch on worker 1", "TFA-506"),
    "train_on_batch with fewer rows": (SETTINGS, "16 rows", "8 rows", "TFA-511"),
    "evaluates alone": ("evaluate within fit on worker 1", "TFA-506"),
    "gradients of another shape": ("float32(10,)", "float32(13,)", "TFA-305"),
    "a gradient is missing": ("pass zeros instead of None", "worker 1: variable (", "TFA-305"),
    "gradients of other groups": ("in the same groups", "in group", "TFA-305"),
    # A worker leaves the others' calls: this is found within seconds, not at once.
    "leaves fit early": ("in fit, epoch 1", "in evaluate", "TFA-503"),
    "saves a variable alone": (CALLS, "saves the variable 'average:0'", "TFA-503"),
}


# One of each way in which workers find a difference.
ALWAYS = dict.fromkeys(
    ["a frozen layer", "evaluates alone", "gradients of other groups", "leaves fit early"],
    pytest.mark.always,
)


@pytest.mark.parametrize("case", [pytest.param(c, marks=ALWAYS.get(c, ())) for c in OUTCOMES])
@pytest.mark.slow
def test_both_raise(groups, case):
    group = groups.of("2x1")
    *texts, code = OUTCOMES[case]
    try:
        for each in group.run(differences.run, case=case):
            message = str(each["error"][0])
            for text in (*texts, see(code)):
                assert text in message, message
            assert each["seconds"] < SECONDS
    finally:
        if code == "TFA-503":
            group.close()  # no collective works any more


@pytest.mark.slow
def test_what_may_differ(groups):
    for each in groups.of("2x1").run(differences.run, case="what may differ"):
        assert str(each["error"][0]) == "none"
