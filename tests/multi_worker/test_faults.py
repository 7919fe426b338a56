"""Workers that are killed, stopped, fail or never come: what the others report, and how soon."""

import pytest
from support import faults, meshes
from support.pace import PACE

from tf_adasum.environment_variables import TRANSPORT

# Seconds to the error, of what is patient and of what is not; on a busy machine. Silence and calls
# that differ take 10 s at least.
TIMEOUT = 10 * PACE
DETECTION_SECONDS = 8 * PACE

slow, always = pytest.mark.slow, pytest.mark.always
LOST = "was lost: its process ended without reporting an error"
FAULT = "ArithmeticError: the fault of this worker"


def assert_ends(outcomes, *texts, within, workers=2):
    assert len(outcomes) == workers - 1
    for outcome in outcomes.values():
        assert outcome.error == "WorkerLostError", outcome.output
        for text in texts:
            assert text in outcome.message, outcome.message
        assert outcome.seconds < within
        assert outcome.code == 1, "its process ends, too"


OVER_UCX = {TRANSPORT: "ucx"}


@pytest.mark.parametrize(
    ("fault", "injection_point", "victim", "workers", "variables"),
    [
        pytest.param("kill", "step", 1, 2, {}, marks=always),
        ("term", "step", 0, 2, {}),
        pytest.param("kill", "exchange", 1, 2, {}, marks=slow),
        ("kill", "build", 1, 2, {}),
        ("kill", "checkpoint", 0, 2, {}),
        pytest.param("kill", "step", 0, 3, {}, marks=slow),
        pytest.param("kill", "exchange", 1, 2, OVER_UCX, marks=always),
        ("kill", "step", 0, 2, OVER_UCX | {"UCX_TLS": "tcp,self"}),
    ],
)
def test_a_killed_worker_is_named(
    tmp_path, monkeypatch, fault, injection_point, victim, workers, variables
):
    if variables:
        meshes.opened()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcomes = faults.run(
        tmp_path, fault=fault, injection_point=injection_point, victim=victim, workers=workers
    )
    texts = f"worker {victim} (127.0.0.1:", LOST
    assert_ends(outcomes, *texts, within=DETECTION_SECONDS, workers=workers)


@pytest.mark.parametrize(
    ("victim", "fault", "options", "reason"),
    [
        # The end of worker 0 breaks the others' collectives: it holds TensorFlow's service.
        pytest.param(0, "raise", {}, f": {FAULT}", marks=always),
        pytest.param(1, "raise", {"lingers": True}, f"failed: {FAULT}", marks=always),
        (1, "raise", {"injection_point": "data"}, f"has ended: {FAULT}"),
        pytest.param(0, "interrupt", {}, ": KeyboardInterrupt", marks=slow),
        pytest.param(1, "exit", {}, ": SystemExit", marks=slow),
        pytest.param(1, "exit", {"injection_point": "epoch"}, "has ended: SystemExit", marks=slow),
        pytest.param(0, "raise", {"call": "train_on_batch"}, ": ArithmeticError", marks=slow),
        pytest.param(0, "raise", {"call": "working_together"}, ": ArithmeticError", marks=slow),
        pytest.param(1, "raise", {"call": "working_together"}, ": ArithmeticError", marks=slow),
    ],
)
@pytest.mark.version_independent
def test_a_worker_that_fails_says_why_before_its_process_ends(
    tmp_path, victim, fault, options, reason
):
    options = {"injection_point": "step", **options}
    outcomes = faults.run(tmp_path, fault=fault, victim=victim, **options)
    assert_ends(outcomes, f"worker {victim} (127.0.0.1:", reason, within=DETECTION_SECONDS + 4)


@pytest.mark.parametrize(
    ("fault", "injection_point", "timeouts", "texts"),
    [
        ("stop", "step", 1, ["worker 1 (", "was lost: it has sent nothing for"]),
        ("sleep", "step", 1, ["worker 1 (", "which is at faulty_worker.py:"]),
        pytest.param("sleep", "build", 1, ["worker 1 ("], marks=slow),
        # Longer than all have to wait before they are judged.
        (
            "differ",
            "step",
            2,
            ["not made the same calls", "worker 1 is at faulty_worker.py:"],
        ),
    ],
)
@pytest.mark.version_independent
@always
def test_a_hung_worker_is_named(tmp_path, fault, injection_point, timeouts, texts):
    timeout = timeouts * TIMEOUT
    outcomes = faults.run(tmp_path, fault=fault, injection_point=injection_point, timeout=timeout)
    assert_ends(outcomes, *texts, within=timeout + DETECTION_SECONDS)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=slow)])
@pytest.mark.version_independent
def test_a_process_that_ends_while_tensorflow_starts(tmp_path, victim):
    """Python cannot run meanwhile: where TensorFlow does not return, the guard ends the worker."""
    timeout = 20 * PACE
    outcomes = faults.run(
        tmp_path, fault="kill", injection_point="start", victim=victim, timeout=timeout
    )
    (outcome,) = outcomes.values()
    assert outcome.seconds_to_end < timeout + DETECTION_SECONDS
    assert outcome.code != 0
    assert f"worker {victim} (127.0.0.1:" in outcome.output
