"""Workers that are killed, stopped, fail or never come: what the others say, and how soon."""

import pytest
from support import faults

# Seconds to the error, of what is patient and of what is not; on a busy machine. Silence and calls
# that differ take 10 s at least.
TIMEOUT = 10
AT_ONCE = 8

LOST = "was lost: its process ended without reporting an error"

faults_are_named = pytest.mark.feature("a lost worker is named")


def only(outcomes):
    (outcome,) = outcomes.values()
    return outcome


def assert_ends(outcome, *texts, within, error="WorkerLostError"):
    assert outcome.error == error, outcome.output
    for text in texts:
        assert text in outcome.message, outcome.message
    assert outcome.seconds < within
    assert outcome.code == 1, "its process ends, too"


@pytest.mark.parametrize(
    ("fault", "moment", "victim", "workers"),
    [
        pytest.param("kill", "step", 1, 2, marks=faults_are_named),
        pytest.param("term", "step", 0, 2, marks=faults_are_named),
        pytest.param("kill", "exchange", 1, 2, marks=pytest.mark.slow),
        pytest.param("kill", "build", 1, 2, marks=faults_are_named),
        pytest.param("kill", "checkpoint", 0, 2, marks=faults_are_named),
        pytest.param("kill", "step", 0, 3, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_ends(tmp_path, fault, moment, victim, workers):
    outcomes = faults.play(tmp_path, fault=fault, moment=moment, victim=victim, workers=workers)
    assert len(outcomes) == workers - 1
    for outcome in outcomes.values():
        assert_ends(outcome, f"worker {victim} (127.0.0.1:", LOST, within=AT_ONCE)


@faults_are_named
@pytest.mark.one_stack
def test_a_stopped_process(tmp_path):
    outcome = only(faults.play(tmp_path, fault="stop", moment="step", timeout=TIMEOUT))
    assert_ends(
        outcome, "worker 1 (", "was lost: it has sent nothing for", within=TIMEOUT + AT_ONCE
    )


@pytest.mark.parametrize(
    ("moment", "lingers"),
    [
        pytest.param("step", True, marks=faults_are_named),
        pytest.param("data", False, marks=faults_are_named),
        pytest.param("step", False, marks=pytest.mark.slow),
        pytest.param("data", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.one_stack
def test_an_exception_on_one_worker(tmp_path, moment, lingers):
    outcome = only(faults.play(tmp_path, fault="raise", moment=moment, lingers=lingers))
    verb = "failed" if lingers else "has ended"
    text = f"{verb}: ArithmeticError: the fault of this worker"
    assert_ends(outcome, "worker 1 (", text, within=AT_ONCE + 4)


@pytest.mark.parametrize(
    ("victim", "fault", "call", "reason"),
    [
        pytest.param(0, "raise", "fit", "ArithmeticError: the fault", marks=faults_are_named),
        pytest.param(0, "interrupt", "fit", "KeyboardInterrupt", marks=pytest.mark.slow),
        pytest.param(0, "exit", "fit", "SystemExit", marks=pytest.mark.slow),
        pytest.param(1, "exit", "fit", "SystemExit", marks=pytest.mark.slow),
        pytest.param(0, "raise", "train_on_batch", "ArithmeticError", marks=pytest.mark.slow),
        pytest.param(0, "raise", "working_together", "ArithmeticError", marks=pytest.mark.slow),
        pytest.param(1, "raise", "working_together", "ArithmeticError", marks=pytest.mark.slow),
    ],
)
@pytest.mark.one_stack
def test_a_worker_that_fails_says_why_before_its_process_ends(
    tmp_path, victim, fault, call, reason
):
    """The end of worker 0 breaks the others' collectives at once: it holds TensorFlow's service."""
    played = faults.play(tmp_path, fault=fault, moment="step", victim=victim, call=call)
    outcome = only(played)
    assert_ends(outcome, f"worker {victim} (127.0.0.1:", f": {reason}", within=AT_ONCE + 4)


@pytest.mark.slow
@pytest.mark.one_stack
def test_a_script_that_ends_early(tmp_path):
    outcome = only(faults.play(tmp_path, fault="exit", moment="epoch"))
    assert_ends(outcome, "worker 1 (", "has ended: SystemExit", within=AT_ONCE + 4)


@faults_are_named
@pytest.mark.one_stack
def test_a_worker_that_is_alive_and_does_not_come(tmp_path):
    outcome = only(faults.play(tmp_path, fault="sleep", moment="step", timeout=TIMEOUT))
    place = "which is at faulty_worker.py:"
    assert_ends(outcome, "worker 1 (", place, within=TIMEOUT + AT_ONCE)


@faults_are_named
@pytest.mark.one_stack
def test_workers_that_make_different_calls(tmp_path):
    # Longer than all have to wait before they are judged.
    outcome = only(faults.play(tmp_path, fault="differ", moment="step", timeout=2 * TIMEOUT))
    place = "worker 1 is at faulty_worker.py:"
    assert_ends(outcome, "not made the same calls", place, within=2 * TIMEOUT + AT_ONCE)


@pytest.mark.slow
@pytest.mark.one_stack
def test_a_worker_that_does_not_build_the_model(tmp_path):
    outcome = only(faults.play(tmp_path, fault="sleep", moment="build", timeout=TIMEOUT))
    assert_ends(outcome, "worker 1 (", within=TIMEOUT + AT_ONCE)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.one_stack
def test_a_process_that_ends_while_tensorflow_starts(tmp_path, victim):
    """Python cannot run meanwhile: where TensorFlow does not return, the guard ends the worker."""
    timeout = 20
    played = faults.play(tmp_path, fault="kill", moment="start", victim=victim, timeout=timeout)
    outcome = only(played)
    assert outcome.seconds_to_end < timeout + AT_ONCE
    assert outcome.code != 0
    assert f"worker {victim} (127.0.0.1:" in outcome.output
