"""Who failed first, and why: from what Python itself writes when it ends."""

import json
import signal
import subprocess
import sys

import pytest

from tf_adasum.cluster import start_timeout
from tf_adasum.launch import failures
from tf_adasum.launch.failures import ProcessFailure, StderrTail


def words_of(program):
    """What a program of Python's says last, read as the launcher reads it."""
    ended = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True)
    return read(ended.stderr)


def read(text):
    words = StderrTail()
    for line in text.split("\n"):
        words.read(line)
    return words


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise ValueError('bad shape')", "ValueError: bad shape"),
        ("raise ValueError('two\\nlines')", "ValueError: two"),
        ("assert 0", "AssertionError"),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError: Expecting property name"),
        ("try: 1/0\nexcept ZeroDivisionError: raise KeyError('key')", "KeyError: 'key'"),
        ("try: 1/0\nexcept ZeroDivisionError as e: raise OSError('x') from e", "OSError: x"),
        (
            "class Late:\n    def __del__(self): raise TypeError('late')\n"
            "late = Late()\nraise ValueError('first')",
            "ValueError: first",
        ),
        ("import sys; sys.exit('a message')", ""),
    ],
)
def test_the_line_that_names_the_exception(program, error):
    found = words_of(program).error
    assert found.startswith(error) and bool(found) == bool(error)


def test_a_traceback_with_what_it_was_raised_from():
    words = words_of("print(1)\ntry: 1/0\nexcept ZeroDivisionError: raise KeyError('key')")
    lines = words.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "ZeroDivisionError: division by zero" in lines and lines[-1] == "KeyError: 'key'"
    assert words_of("import sys; sys.exit('a message')").traceback == ""


def test_a_later_traceback_replaces_an_earlier_one():
    one = 'Traceback (most recent call last):\n  File "a", line 1\n{}: x\nI go on\n'
    words = read(one.format("OSError") + one.format("KeyError"))
    assert (words.error, words.line) == ("KeyError: x", "I go on")
    assert "OSError" not in words.traceback and words.traceback.endswith("I go on")


def test_what_a_terminal_would_act_on_is_left_out():
    assert read("\x1b[1;31mValueError\x07\x1b[0m: x").line == "ValueError: x"
    assert len(read("x" * 10_000).line) <= 500


def test_an_exception_is_complete_and_what_is_cut_says_so():
    message = "WorkerLostError: " + "x" * 3000 + " (tf-adasum-doctor --explain TFA-501)"
    begin = 'Traceback (most recent call last):\n  File "a", line 1\n'
    assert read(begin + message).error == message
    assert read("x" * 10_000).line.endswith("x …")
    endless = read(begin + "ValueError: " + "x" * 100_000).error
    assert endless.endswith("x …") and len(endless) <= 10_000


LOST = "tf_adasum.errors.WorkerLostError: worker {} (127.0.0.1:2222) failed: ValueError: x."


def end(rank, code, error="", line="", **options):
    words = StderrTail()
    words.error, words.line = error, line or error
    return ProcessFailure(rank, code, words, **options)


def test_the_first_to_end_is_the_first_to_fail():
    ends = [end(2, 0), end(1, -signal.SIGKILL), end(0, 1, LOST.format(1)), end(3, -15)]
    assert failures.first_of(ends).rank == 1


def test_one_that_ended_because_of_another_points_to_that():
    slow = end(1, -signal.SIGTERM, "ValueError: x", is_stopped=True)
    other = end(2, 1, "ValueError: y")
    assert failures.first_of([end(0, 1, LOST.format(1)), other, slow]).rank == 1
    assert failures.first_of([end(0, 1, LOST.format(7)), other, slow]).rank == 2
    assert failures.first_of([end(0, 1, LOST.format(7)), slow]).rank == 0


def test_a_summary():
    ends = [end(1, 1, "ValueError: x", log="logs/worker-1.log"), end(0, -15, is_stopped=True)]
    assert failures.summary([*ends, end(2, 0), end(3, 0, is_stopped=True)]) == [
        "worker 1 failed first, with exit status 1: ValueError: x",
        "ended because of it: workers 0, 3",
        "the output of worker 1 is in logs/worker-1.log",
    ]
    (line,) = failures.summary([end(0, 1, LOST.format(5))])
    assert line == "worker 0 ended because of another worker, with exit status 1: " + LOST.format(5)
    many = [end(0, 3), *(end(rank, -15, is_stopped=True) for rank in range(1, 20))]
    assert failures.summary(many)[1] == (
        "ended because of it: workers 1, 2, 3, 4, 5, 6, 7, 8 and 11 more"
    )


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (-9, "training", "SIGKILL (killed: possibly out of memory)"),
        (-11, "Fatal Python error: Segmentation fault", "Segmentation fault"),
        (-40, "training", "signal 40"),
        (7, "no such file", "exit status 7: no such file"),
        (7, "", "exit status 7"),
    ],
)
def test_signals_and_codes(code, line, expected):
    (summary,) = failures.summary([end(0, code, line=line)])
    assert summary.endswith(expected)


def test_without_anybody_who_listened():
    assert failures.summary([ProcessFailure(0, 3)]) == ["worker 0 failed first, with exit status 3"]


def test_one_that_its_guard_has_killed_is_not_out_of_memory():
    task = {
        "worker": 0,
        "name": "worker 0",
        "seconds": 0.0,
        "others": [["worker 1 (a:1)", ["", 1]]],
    }
    program = (
        "import json, os, subprocess, sys; task = json.loads(sys.argv[1]); "
        "task['worker'] = os.getpid(); "
        "subprocess.Popen([sys.executable, '-I', '-S', sys.argv[2], json.dumps(task)], "
        "stdin=subprocess.PIPE).wait()"
    )
    command = [sys.executable, "-S", "-c", program, json.dumps(task), start_timeout.__file__]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        words = read(process.stderr.read())
    killed = ProcessFailure(0, process.returncode, words)
    assert process.returncode == -signal.SIGKILL
    (line,) = failures.summary([killed])
    assert line.startswith(
        "worker 0 ended because of another worker, with SIGKILL: tf_adasum: worker"
    )
    assert failures.first_of([killed, end(1, 1, "ValueError: x")]).rank == 1


def test_carets_at_the_beginning_of_a_line_are_no_exception():
    """Python writes them so where a traceback's positions are wrong, as Keras's."""
    text = (
        'Traceback (most recent call last):\n  File "a", line 1\n    call(x)\n^^^^^^^^\nKeyError: x'
    )
    assert read(text).error == "KeyError: x"
