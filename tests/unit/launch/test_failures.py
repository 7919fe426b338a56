"""Who failed first, and why: from what Python itself writes when it ends."""

import signal
import subprocess
import sys

import pytest

from tf_adasum.cluster.error_file import Report
from tf_adasum.launch import failures
from tf_adasum.launch.failures import ProcessExit, StderrTail

BEGIN = 'Traceback (most recent call last):\n  File "a", line 1\n'


def read(text):
    """Return a `StderrTail` that has read a text."""
    words = StderrTail()
    for line in text.split("\n"):
        words.read(line)
    return words


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise ValueError('two\\nlines')", "ValueError: two"),
        ("assert 0", "AssertionError"),
        ("try: 1/0\nexcept ArithmeticError: raise KeyError('x')", "KeyError: 'x'"),
        ("try: 1/0\nexcept ArithmeticError as e: raise OSError('x') from e", "OSError: x"),
        (
            "class Late:\n    def __del__(self): raise TypeError('late')\n"
            "late = Late()\nraise ValueError('first')",
            "ValueError: first",
        ),
    ],
)
def test_the_exception_of_a_program_is_found(program, error):
    ended = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True)
    assert read("before\n" + ended.stderr).error == error


def test_a_message_of_another_thread_inside_a_traceback_is_no_exception():
    lost = "tf_adasum.errors.WorkerLostError: worker 2 (a:1) was lost"
    words = read(f'{BEGIN}tf_adasum: worker 2 (a:1) was lost\n  File "b", line 2\n{lost}\n')
    assert words.error == lost


def test_a_later_traceback_replaces_an_earlier_one():
    words = read(f"{BEGIN}OSError: x\nI continue\n{BEGIN}KeyError: x\nI continue\n")
    assert (words.error, words.line) == ("KeyError: x", "I continue")


def test_carets_at_the_beginning_of_a_line_are_no_exception():
    """Python writes them so where a traceback's positions are wrong, as Keras's."""
    assert read(BEGIN + "    call(x)\n^^^^^^^^\nKeyError: x").error == "KeyError: x"


def test_long_lines_are_cut_and_what_a_terminal_would_act_on_is_left_out():
    assert read("\x1b\x07ValueError: x").line == "ValueError: x"
    assert read(BEGIN + "x" * 10_001).error == "x" * 10_000


LOST = "tf_adasum.errors.WorkerLostError: worker 1 (127.0.0.1:2222) failed: ValueError: x."


def end(rank, code, error="", line="", at=None, lost=False, **options):
    """A worker that has ended; with `at`, it has written its error to its file at that time."""
    words = StderrTail()
    words.error, words.line = error, line or error
    report = None if at is None else Report(error, lost, at)
    return ProcessExit(rank, code, words, report=report, **options)


def lost(rank):
    return end(rank, 1, LOST, at=5.0, lost=True, ended_at=10.0)


STOPPED = end(1, -signal.SIGTERM, "ValueError: x", is_stopped=True, at=6.0)
LATE = end(1, -signal.SIGTERM, "KeyboardInterrupt", is_stopped=True, at=11.0)


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        ([end(2, 0), end(1, -signal.SIGKILL), lost(0), end(3, -15)], 1),
        ([lost(0), end(2, 1, "ValueError: y", at=7.0), STOPPED], 1),
        ([lost(0), end(2, 1, "ValueError: y", at=4.0), STOPPED], 2),
        ([lost(0), LATE], 0),
        ([lost(0), end(2, -15, is_stopped=True), end(3, 1)], 3),
        ([end(0, 1, LOST), end(1, 1)], 0),
    ],
    ids=["first", "slow to end", "earlier", "of another host", "stopped", "quoted"],
)
def test_the_worker_that_made_the_others_end_is_found(ends, rank):
    assert failures.first_failure(ends).rank == rank


@pytest.mark.parametrize(
    ("ended", "has_failed"),
    [
        (end(0, 1, "ValueError: x"), True),
        (end(0, 1, "ValueError: x", at=5.0), True),
        (end(0, 1, line="exit(1)"), False),
        (end(0, -signal.SIGKILL), False),
        (end(0, 0, "OSError: ignored"), False),
        (ProcessExit(0, 1), False),
        (lost(0), False),
    ],
    ids=["stderr", "error file", "no exception", "killed", "no failure", "nothing read", "lost"],
)
def test_a_failure_is_a_workers_own(ended, has_failed):
    assert bool(failures.own_failures([ended])) == has_failed


def test_a_summary():
    ends = [end(1, 1, "ValueError: x", log="logs/worker-1.log"), end(0, -15, is_stopped=True)]
    assert failures.summary([*ends, end(2, 0), end(3, 0, is_stopped=True)]) == [
        "worker 1 failed first, with exit status 1: ValueError: x",
        "ended because of it: workers 0, 3",
        "the output of worker 1 is in logs/worker-1.log",
    ]
    (line,) = failures.summary([lost(0)])
    assert line == "worker 0 ended because of another worker, with exit status 1: " + LOST
    of_a_slow_end = failures.summary([lost(0), STOPPED])
    assert of_a_slow_end[0] == "worker 1 failed first: ValueError: x"
    others = [end(rank, -15, is_stopped=True) for rank in range(1, 20)]
    named = "ended because of it: workers 1, 2, 3, 4, 5, 6, 7, 8, and 11 more"
    assert failures.summary([end(0, 3), *others])[1] == named
    assert failures.summary([end(0, 3), *others[:8]])[1] == named.removesuffix(", and 11 more")
    (line,) = failures.summary([ProcessExit(0, -signal.SIGKILL)])
    assert line == "worker 0 failed first, with SIGKILL (killed: possibly out of memory)"


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (-9, "training", "with SIGKILL (killed: possibly out of memory)"),
        (-11, "Fatal Python error: Segmentation fault", "not own): Fatal Python error: Segm"),
        (-40, "training", "with signal 40"),
        (7, "no such file", "with exit status 7: no such file"),
    ],
)
def test_signals_and_codes(code, line, expected):
    (summary,) = failures.summary([end(0, code, line=line)])
    assert expected in summary and (line in summary) == (code in (-11, 7))


def test_an_error_is_named_before_workers_that_were_asked_to_end():
    asked, failed = end(1, 75), end(0, 1, "OSError: No space left on device")
    assert failures.first_failure([asked, failed]) is failed
    assert failures.first_failure([asked]) is asked


def test_one_that_its_guard_has_killed_is_not_out_of_memory():
    killed = end(0, -signal.SIGKILL, "tf_adasum: worker 0 waited 60 s", at=5.0, lost=True)
    (line,) = failures.summary([killed])
    assert line == (
        "worker 0 ended because of another worker, with SIGKILL: tf_adasum: worker 0 waited 60 s"
    )
    assert failures.first_failure([killed, end(1, 1, "ValueError: x")]).rank == 1
