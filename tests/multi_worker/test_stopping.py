"""Real workers that get signals: all stop together, and the next start goes on bit for bit."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest
from support import worker_group

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")

SCRIPT = pathlib.Path(worker_group.HERE, "stopped_worker.py")
SECONDS = 240


def train(folder, workers=2, **asked):
    """Train on so many workers, and return the exit status, reports and output of each."""
    command = [sys.executable, "-u", str(SCRIPT)]
    command.append(json.dumps({"folder": str(folder), "signals": {}, "seconds": SECONDS, **asked}))
    ports = worker_group.free_ports(workers)
    processes = []
    try:
        for rank in range(workers):
            environment = worker_group.worker_environment(ports, rank, 1)
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            processes.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    ended = []
    for process, output in zip(processes, outputs, strict=True):
        lines = [line for line in output.splitlines() if line.startswith('{"ended"')]
        ended.append((process.returncode, json.loads(lines[-1]) if lines else {}, output))
    return ended


def assert_stopped(ended, last, more=1):
    """All ended with 75, at the same place, soon after `last`."""
    for code, said, output in ended:
        assert code == 75, output
        assert said["ended"] == "SystemExit: 75"
        assert said["seen"] == ended[0][1]["seen"]
        assert last in said["seen"][-1 - more :], said["seen"]
        assert "WorkerLost" not in output and "was lost" not in output
    assert "exit status 75" in ended[0][2]


TO_WORKER_0 = ({"0": ["batch", 0, 2, "SIGTERM"]}, ["batch", 0, 2])
TO_WORKER_1 = ({"1": ["validation", 1, 1, "SIGUSR1"]}, ["validation", 1, 1])
TO_BOTH = ({rank: ["batch", 2, 3, "SIGTERM"] for rank in "01"}, ["batch", 2, 3])


@pytest.mark.parametrize(
    "plans",
    [
        pytest.param([TO_WORKER_1], id="one"),
        pytest.param([TO_WORKER_0, TO_WORKER_1, TO_BOTH], id="three", marks=pytest.mark.slow),
    ],
)
@pytest.mark.feature("`callbacks.BackupAndRestore`: stopped by a signal, resumes bit for bit")
def test_signals_to_any_worker(tmp_path, plans):
    """To worker 0 in an epoch, to worker 1 in a validation, to both at once."""
    unbroken = train(tmp_path / "unbroken")
    assert [code for code, *_ in unbroken] == [0, 0], unbroken
    for signals, last in plans:
        assert_stopped(train(tmp_path / "broken", signals=signals), last)
    for (code, said, output), (_, expected, _) in zip(
        train(tmp_path / "broken"), unbroken, strict=True
    ):
        assert code == 0, output
        assert said["digest"] == expected["digest"]
        for name, values in said["history"].items():
            assert values == expected["history"][name][-len(values) :], name
    assert not list(tmp_path.glob("*/backup-*/*")), "the trainings have ended"


@pytest.mark.slow
def test_several_steps_in_one_execution(tmp_path):
    unbroken = train(tmp_path / "unbroken", together=2)
    signals = {"1": ["batch", 1, 1, "SIGTERM"]}
    assert_stopped(train(tmp_path / "broken", signals=signals, together=2), ["batch", 1, 1])
    for (_, said, output), (_, expected, _) in zip(
        train(tmp_path / "broken", together=2), unbroken, strict=True
    ):
        assert said["digest"] == expected["digest"], output


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path):
    """Before it has come to the next place: the others lose it, as without the callback."""
    (code, said, _), (other, _, output) = train(tmp_path, signals={"0": ["batch", 1, 1, "twice"]})
    assert (code, said) == (-signal.SIGTERM, {})
    assert other == 1 and "WorkerLostError" in output


@pytest.mark.slow
def test_a_worker_that_is_lost_while_they_agree(tmp_path):
    signals = {"0": ["batch", 1, 1, "SIGTERM"], "1": ["batch", 1, 1, "lost"]}
    (code, said, output), (other, *_) = train(tmp_path, signals=signals)
    assert (code, other) == (1, -signal.SIGKILL)
    assert said["ended"].startswith("WorkerLostError: worker 1 ("), output
