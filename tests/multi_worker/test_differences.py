"""Workers that do not run the same program: both raise within seconds, and name the difference."""

import pytest
from scenarios import differences, random_programs

from tf_adasum.errors import see

SECONDS = 30  # on a busy machine, with what is trained before the difference; else at most 10

PROGRAMS = 5  # random programs in one test

SETTINGS, CALLS = "different settings. ", "have not made the same calls: "

# What both workers raise, case by case: what it says, and the code of the answer.
OUTCOMES = {
    "another width": (CALLS, "kernel (float32[4, 3])", "kernel (float32[4, 5])", "TFA-503"),
    "another order of layers": (CALLS, "(float32[4, 3])", "(float32[4, 5])", "TFA-503"),
    "one more layer": (CALLS, "(float32[3, 1])", "(float32[3, 3])", "TFA-503"),
    "another activation": (SETTINGS, "Dense, activation=relu", "activation=tanh", "TFA-511"),
    "another dtype policy": (SETTINGS, "dtype='float32'", "dtype='mixed_float16'", "TFA-511"),
    "another dropout": (SETTINGS, "rate=0.1", "rate=0.2", "TFA-511"),
    "another momentum of BatchNormalization": (
        SETTINGS,
        "momentum=0.99",
        "momentum=0.9",
        "TFA-511",
    ),
    "a frozen layer": (SETTINGS, "trainable=True", "trainable=False", "TFA-511"),
    "other weights": ("hold different values of", "dense/kernel", "(worker 1)", "TFA-508"),
    "outside of the scope": ("created outside the scope", "differences.py:", "TFA-301"),
    "another optimizer": (SETTINGS, "worker 0: SGD", "worker 1: Adam", "TFA-511"),
    "another learning rate": (SETTINGS, "worker 0: 0.1", "worker 1: 0.2", "TFA-511"),
    "another momentum": (SETTINGS, "optimizer.momentum", "0.9", "0.8", "TFA-511"),
    "another beta_1": (SETTINGS, "optimizer.beta_1", "0.9", "0.8", "TFA-511"),
    "another weight decay": (SETTINGS, "optimizer.weight_decay", "None", "0.1", "TFA-511"),
    "a schedule": (SETTINGS, "worker 0: 0.1", "worker 1: ExponentialDecay", "TFA-511"),
    "another schedule": (SETTINGS, "decay_steps=20", "decay_steps=10", "TFA-511"),
    "another clipping": (SETTINGS, "optimizer.clipnorm", "TFA-511"),
    "another accumulation": (SETTINGS, "optimizer.gradient_accumulation_steps", "TFA-511"),
    "another wrapper": (SETTINGS, "worker 0: SGD", "worker 1: DeltaAdasum", "TFA-511"),
    "another loss": (SETTINGS, "compile(loss)", "'mse'", "'mae'", "TFA-511"),
    "another metric": (SETTINGS, "compile(metrics)", "['mae']", "['mse']", "TFA-511"),
    "another steps_per_execution": (SETTINGS, "compile(steps_per_execution)", "TFA-511"),
    "another run_eagerly": (SETTINGS, "compile(run_eagerly)", "TFA-511"),
    "another number of epochs": (SETTINGS, "fit(epochs)", ": 2", ": 3", "TFA-511"),
    "another batch size": (SETTINGS, "fit(batch_size)", ": 4", ": 8", "TFA-511"),
    "other steps per epoch": (SETTINGS, "fit(steps_per_epoch)", ": 2", ": 3", "TFA-511"),
    "another initial epoch": (SETTINGS, "fit(initial_epoch)", "TFA-511"),
    "validation on one worker": (SETTINGS, "fit(validation_data)", "None", "TFA-511"),
    "another validation frequency": (SETTINGS, "fit(validation_freq)", "TFA-511"),
    "another validation split": (SETTINGS, "fit(validation_split)", "TFA-511"),
    "another shuffle": (SETTINGS, "fit(shuffle)", "TFA-511"),
    "another class weight": (SETTINGS, "{0: 1}", "{0: 2}", "TFA-511"),
    "sample weights on one worker": (SETTINGS, "fit(sample_weight)", "TFA-511"),
    "fewer rows": ("need the same rows", "16 rows", "12 rows", "TFA-405"),
    "no rows": ("need the same rows", "16 rows", "0 rows", "TFA-405"),
    "wider rows": (SETTINGS, "float64[4]", "float64[5]", "TFA-511"),
    "another kind of data": (SETTINGS, "float64[4]", "tf.data.Dataset", "TFA-511"),
    "a dataset of fewer batches": ("the same number of batches", "TFA-405"),
    "learning rate set by a callback": ("worker 0: 0.1, worker 1: 0.2", "TFA-511"),
    "learning rate set between two calls": (SETTINGS, "learning_rate", "TFA-511"),
    "fit and evaluate": ("fit on worker 0, evaluate on worker 1", "TFA-506"),
    "predict with another batch size": (SETTINGS, "predict(batch_size)", "TFA-511"),
    "train_on_batch and test_on_batch": ("test_on_batch on worker 1", "TFA-506"),
    "train_on_batch with fewer rows": (SETTINGS, "16 rows", "8 rows", "TFA-511"),
    "later train_on_batch with another rate": (CALLS, "learning_rate: 0.2", "TFA-503"),
    "evaluates alone": ("evaluate within fit on worker 1", "TFA-506"),
    "gradients of another shape": ("float32(10,)", "float32(13,)", "TFA-305"),
    "variables of another shape": (CALLS, "(float32[4])", "(float32[5])", "TFA-503"),
}

# Cases in which a worker leaves the others' calls: they are found within seconds, not at once.
SLOWER = {
    "leaves fit early": ("in fit, epoch 1", "in evaluate", "TFA-503"),
    "one step more": ("(custom_loop)", "(add)", "TFA-503"),
}


def assert_both_raise(group, case, texts):
    for each in group.run(differences.play, case=case):
        message = str(each["error"][0])
        for text in texts:
            assert text in message, message
        assert see(texts[-1]) in message
        assert each["seconds"] < SECONDS


@pytest.mark.feature("workers that run different programs: an error names the difference")
@pytest.mark.keras3_only("workers compare the settings of a call with Keras 3")
@pytest.mark.parametrize("case", OUTCOMES)
def test_both_raise(adasum_groups, case):
    group = adasum_groups.of("2x1")
    try:
        assert_both_raise(group, case, OUTCOMES[case])
    finally:
        if "TFA-503" in OUTCOMES[case]:
            group.close()  # no collective works any more


@pytest.mark.keras3_only("workers compare the settings of a call with Keras 3")
def test_what_may_differ(adasum_groups):
    for each in adasum_groups.of("2x1").run(differences.play, case="what may differ"):
        assert str(each["error"][0]) == "none"


@pytest.mark.keras3_only("workers compare the settings of a call with Keras 3")
@pytest.mark.parametrize("first", range(0, 500, PROGRAMS))
def test_programs_that_are_the_same_are_not_refused(adasum_groups, first):
    seeds = list(range(first, first + PROGRAMS))
    for each in adasum_groups.of("2x1").run(random_programs.run, timeout=400, seeds=seeds):
        assert each["errors"].tolist() == []


@pytest.mark.keras3_only("workers compare the settings of a call with Keras 3")
@pytest.mark.parametrize("case", SLOWER)
def test_a_worker_that_is_elsewhere(adasum_groups, case):
    group = adasum_groups.of("2x1")
    try:
        assert_both_raise(group, case, SLOWER[case])
    finally:
        group.close()  # no collective works any more
