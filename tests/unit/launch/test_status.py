"""`--status`: what each worker does, in a table on a terminal, else in lines."""

import json
import pathlib
import queue
import re
import threading
import time
import types

import pytest
from support.launching import on_terminal, run

from tf_adasum.launch import output
from tf_adasum.launch.status import Board


def write(board, rank, text=None, ago=0, **status):
    (path,) = board.environment(rank).values()
    status = {"step": 0, "doing": "", "waits": 0.0, "time": time.time() - ago, **status}
    pathlib.Path(path).write_text(text or json.dumps(status))


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (None, None, ("starting", "", None)),
        ({"text": '{"step": 1'}, None, ("starting", "", None)),  # is being written
        ({}, None, ("running", "", 0)),
        ({"doing": "after fit"}, None, ("running", "after fit", 0)),
        ({"doing": "in fit, epoch 2", "step": 7}, None, ("training", "epoch 2", 7)),
        ({"doing": "in evaluate within fit, epoch 2"}, None, ("training", "epoch 2", 0)),
        ({"doing": "in evaluate"}, None, ("running", "in evaluate", 0)),
        ({"doing": "in fit, epoch 2", "waits": 12.3}, None, ("waiting", "12 s", 0)),
        ({"doing": "in fit, epoch 2", "ago": 3600}, None, ("silent", "3600 s", 0)),
        ({"step": 9}, 0, ("ended", "", 9)),
        ({"step": 9}, 3, ("failed", "exit status 3", 9)),
        (None, -9, ("failed", "exit status -9", None)),
    ],
)
def test_the_state_of_a_worker(tmp_path, status, code, expected):
    board = Board(str(tmp_path), range(1))
    if status is not None:
        write(board, 0, **status)
    if code is not None:
        board.end(0, code)
    (row,) = board.rows()
    assert (row.state, row.more, row.step) == expected
    board.begin()  # a restart
    assert board.rows()[0].state == "starting"


def test_speed_lag_and_the_line(tmp_path):
    board = Board(str(tmp_path), range(4, 8))
    now = time.time()
    for second in range(0, 31, 2):
        for rank, slower in ((4, 0), (5, 3), (6, 0)):
            step = (10 if second <= 20 else 20) * second - (slower if second else 0)
            write(board, rank, step=step, doing="in fit, epoch 1", time=now - 30 + second)
        rows = board.rows()
    assert [(row.rank, row.behind) for row in rows] == [(4, 0), (5, 3), (6, 0), (7, None)]
    assert rows[0].rate == pytest.approx((20 * 30 - 10 * 20) / 10)  # of the last ten seconds
    write(board, 4, step=5, doing="in fit, epoch 1", time=now + 1)
    assert board.rows()[0].rate is None, "another training"
    write(board, 6, step=600, waits=4.0)
    board.end(5, 1)
    assert re.fullmatch(
        r"status: step 600, slowest at 5, [\d.]+ steps/s, worker 4 training, worker 5 failed, "
        "worker 6 waiting, worker 7 starting",
        board.line(),
    )


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


def test_a_table_below_the_output(script):
    pytest.importorskip("rich")
    code, text = on_terminal("-n", 2, "--status", script(TRAINS))
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    assert code == 1
    assert re.search(r"worker +host +step +steps/s +behind +state", text)
    assert re.search(r"\n +0 +\S+ +\d+ +\d+\.\d +\d +training epoch 3 *\n +1 .*waiting 4 s", text)
    assert re.search(r"\[worker 0\] \d+/30\n *worker", text), "the progress bar is above the table"
    assert "[worker 0] 30/30\n" in text and "[worker 1] 30/30\n" in text
    end = text.index("tf-adasum-launch: worker 1 failed first, with exit status 1")
    states = re.findall(r"\n +([01]) +\S+ .*?(ended|failed exit status 1) *(?=\n)", text[:end])
    assert ("0", "ended") in states and states[-1] == ("1", "failed exit status 1")


def test_lines_without_a_terminal(script, monkeypatch, capfd):
    result = run("-n", 2, "--status", script("print('line')"))
    assert sorted(result.stdout.splitlines()) == ["[worker 0] line", "[worker 1] line"]
    assert result.stderr == "", "30 seconds have not passed"
    monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0.01)
    ended = threading.Event()
    board = types.SimpleNamespace(line=lambda: ended.set() or "status: worker 0 starting")
    output.Console(queue.SimpleQueue()).follow(board, ended)
    assert capfd.readouterr().err == "tf-adasum-launch: status: worker 0 starting\n"
