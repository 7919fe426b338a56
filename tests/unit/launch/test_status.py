"""`--status`: what each worker does."""

import json
import pathlib
import queue
import re
import sys
import threading
import time
import types

import pytest
from support.launching import run

from tf_adasum.launch import launch, output
from tf_adasum.launch.status import Board


def write(board, rank, text=None, ago=0, **status):
    (path,) = board.environment(rank).values()
    status = {"step": 0, "doing": "", "waits": 0.0, "time": time.time() - ago, **status}
    pathlib.Path(path).write_text(text or json.dumps(status))


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (None, None, "starting"),
        ({"text": '{"step": 1'}, None, "starting"),  # is being written
        ({}, None, "running"),
        ({"doing": "in fit, epoch 2"}, None, "in fit, epoch 2"),
        ({"doing": "in fit, epoch 2", "waits": 12.3}, None, "waiting for 12 s"),
        ({"doing": "in fit, epoch 2", "ago": 3600}, None, "silent"),
        ({}, 0, "ended"),
        ({}, 3, "failed"),
    ],
)
def test_the_state_of_a_worker(tmp_path, status, code, expected):
    board = Board(str(tmp_path), range(1))
    if status is not None:
        write(board, 0, **status)
    if code is not None:
        board.end(0, code)
    assert board.line().endswith(f"worker 0 {expected}")
    board.begin()  # a restart
    assert board.line() == "status: worker 0 starting"


def test_speed_lag_and_the_line(tmp_path):
    board = Board(str(tmp_path), range(4, 8))
    now = time.time()
    for second in range(0, 121, 10):
        for rank, slower in ((4, 0), (5, 3), (6, 0)):
            step = (10 if second <= 60 else 20) * second - (slower if second else 0)
            write(board, rank, step=step, doing="in fit, epoch 1", time=now - 120 + second)
        line = board.line()
    assert "step 2400, slowest at 2397, 30.0 steps/s, " in line, "of the last minute"
    write(board, 4, step=5, doing="in fit, epoch 1", time=now + 1)
    write(board, 6, step=600, waits=4.0)
    board.end(5, 1)
    assert board.line().startswith("status: step 2397, slowest at 5, worker 4 in fit, epoch 1, ")


# What a worker writes, as `tf_adasum.health.status_file` writes it in a training.
TRAINS = """
from tf_adasum.health import call_log, status_file
status_file.begin(lambda: 4.0 * index)
with call_log.call("fit"):
    call_log.epoch(3)
    for step in range(30):
        status_file.set_step(step + 1)
        sys.stdout.write(f"\\b\\b\\r{step + 1}/30"); sys.stdout.flush()
        time.sleep(0.1)
    print("\\nline of", index)
time.sleep(3 * index)  # worker 0 ends before worker 1 fails, also on a busy machine
sys.exit(index)
"""


def test_a_line_from_what_workers_write(script, monkeypatch, capfd):
    monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0.5)
    assert launch([sys.executable, script(TRAINS)], 2, status=True) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if "status: " in line]
    assert any(re.search(r"step \d+, .*worker 0 in fit, epoch 3", line) for line in lines), lines
    assert any("worker 0 ended, worker 1 waiting for 4 s" in line for line in lines), lines


def test_lines_without_a_terminal(script, monkeypatch, capfd):
    result = run("-n", 2, "--status", script("print('line')"))
    assert sorted(result.stdout.splitlines()) == ["[worker 0] line", "[worker 1] line"]
    assert result.stderr == "", "30 seconds have not passed"
    monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0.01)
    ended = threading.Event()
    board = types.SimpleNamespace(line=lambda: ended.set() or "status: worker 0 starting")
    output.Console(queue.SimpleQueue()).follow(board, ended)
    assert capfd.readouterr().err == "tf-adasum-launch: status: worker 0 starting\n"
