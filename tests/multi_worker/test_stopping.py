"""Real workers that get signals: all stop together, and the next start resumes bit for bit."""

import contextlib

import pytest
from support import worker_group
from support.pace import PACE

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")

SECONDS = 120 * PACE


def train(folder, signals=None, steps_per_execution=1):
    """Train on two workers, and return the exit status, report and output of each."""
    asked = {"folder": str(folder), "signals": signals or {}, "seconds": SECONDS}
    asked["steps_per_execution"] = steps_per_execution
    folder.mkdir(exist_ok=True)
    ports, logs = worker_group.free_ports(2), [folder / f"{rank}.log" for rank in (0, 1)]
    with contextlib.ExitStack() as stack:
        processes = []
        for rank, log in enumerate(logs):
            environment = worker_group.worker_environment(ports, rank, 1)
            process = worker_group.start_worker_script("stopped_worker.py", asked, log, environment)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait(SECONDS) for process in processes]
    outputs = [worker_group.read_worker_report(log) for log in logs]
    return [(code, report, output) for code, (output, report) in zip(codes, outputs, strict=True)]


ONE_STEP, SEVERAL_STEPS = 1, 2  # in one execution
TO_WORKER_0 = ({"0": ["batch", 0, 2, "SIGTERM"]}, ["batch", 0, 2])
TO_WORKER_1 = ({"1": ["validation", 1, 1, "SIGUSR1"]}, ["validation", 1, 1])
TO_BOTH = ({rank: ["batch", 2, 3, "SIGTERM"] for rank in "01"}, ["batch", 2, 3])
BETWEEN_EXECUTIONS = ({"1": ["batch", 1, 1, "SIGTERM"]}, ["batch", 1, 1])


@pytest.mark.parametrize(
    ("steps_per_execution", "plans"),
    [
        (ONE_STEP, [TO_WORKER_1]),
        pytest.param(ONE_STEP, [TO_WORKER_0, TO_WORKER_1, TO_BOTH], marks=pytest.mark.slow),
        pytest.param(SEVERAL_STEPS, [BETWEEN_EXECUTIONS], marks=pytest.mark.slow),
    ],
    ids=["one", "three", "several steps in one execution"],
)
@pytest.mark.slow
def test_signals_to_any_worker(tmp_path, steps_per_execution, plans):
    """To worker 0 in an epoch, to worker 1 in a validation, to both at once."""
    unbroken = train(tmp_path / "unbroken", steps_per_execution=steps_per_execution)
    for signals, last in plans:
        stopped = train(tmp_path / "broken", signals, steps_per_execution)
        for code, report, output in stopped:
            assert code == 75 and report["ended"] == "SystemExit: 75", output
            assert report["seen"] == stopped[0][1]["seen"], "all stop at the same place"
            assert last in report["seen"][-2:], "soon after the signal"
            assert "WorkerLost" not in output and "was lost" not in output
        assert "exit status 75" in stopped[0][2]
    resumed = train(tmp_path / "broken", steps_per_execution=steps_per_execution)
    for (code, report, output), (_, expected, _) in zip(resumed, unbroken, strict=True):
        assert code == 0, output
        assert report["digest"] == expected["digest"]
        for name, values in report["history"].items():
            assert values == expected["history"][name][-len(values) :], name
    assert not list(tmp_path.glob("*/backup-*/*")), "the trainings have ended"
