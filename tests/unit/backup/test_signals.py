"""Signals that ask: which ones, what handled them before, a second one."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tf_adasum.backup import signals
from tf_adasum.backup.signals import Signals, numbers_of

pytestmark = pytest.mark.one_stack

USR1, USR2, TERM = signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM


@pytest.fixture(autouse=True)
def as_before():
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (USR1, USR2, TERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, ()),
        ("auto", (TERM, USR1)),
        ("SIGTERM", (TERM,)),
        (USR2, (USR2,)),
        (int(USR2), (USR2,)),
        (["SIGUSR2", "SIGTERM"], (USR2, TERM)),
        (("SIGTERM", TERM), (TERM,)),
    ],
)
def test_names_and_numbers(given, expected):
    assert numbers_of(given) == expected


@pytest.mark.parametrize(
    "given", ["TERM", "sigterm", 0, 999, True, [], [None], 1.5, "SIGKILL", ["SIGTERM", "SIGSTOP"]]
)
def test_refuses_what_is_no_signal(given):
    with pytest.raises(ValueError, match=r"`on_signal` must be .* Received: on_signal="):
        numbers_of(given)


def test_the_first_asks_and_what_was_before_comes_back(capfd):
    asked, called = [], []
    signal.signal(USR2, lambda number, frame: called.append(number))
    taken = Signals([USR1, USR2], lambda: not asked.append(1))
    taken.take()
    os.kill(os.getpid(), USR2)
    os.kill(os.getpid(), USR2)  # the same one, come twice
    assert (asked, called, taken.received) == ([1], [], USR2)
    assert capfd.readouterr().err.startswith("tf_adasum: SIGUSR2: stopping with a backup")
    taken.call_earlier()
    assert called == [USR2]
    assert signal.getsignal(USR1) == signal.SIG_DFL
    os.kill(os.getpid(), USR2)
    assert called == [USR2, USR2]


def test_the_second_does_what_it_did_before(monkeypatch):
    monkeypatch.setattr(signals, "SECONDS_OF_ONE", 0.0)
    called = []
    signal.signal(USR1, lambda number, frame: called.append(number))
    taken = Signals([USR1], lambda: True)
    taken.take()
    os.kill(os.getpid(), USR1)
    assert called == []
    os.kill(os.getpid(), USR1)
    assert called == [USR1]


def test_handlers_of_the_program_are_left_alone():
    def own(number, frame):
        raise AssertionError

    signal.signal(USR1, own)
    signal.signal(USR2, signal.SIG_IGN)
    taken = Signals([USR1, USR2, TERM], lambda: True, leaves_handlers=True)
    taken.take()
    assert signal.getsignal(USR1) is own and signal.getsignal(USR2) == signal.SIG_IGN
    assert signal.getsignal(TERM) not in (own, signal.SIG_DFL)
    taken.give_back()
    assert signal.getsignal(TERM) == signal.SIG_DFL


def test_where_nobody_listens_any_more_it_does_what_it_did_before():
    called = []
    signal.signal(USR1, lambda number, frame: called.append(number))
    Signals([USR1], lambda: False).take()
    os.kill(os.getpid(), USR1)
    assert called == [USR1]


def test_a_handler_that_came_later_stays():
    taken = Signals([USR1], lambda: True)
    taken.take()
    signal.signal(USR1, signal.SIG_IGN)
    taken.give_back()
    assert signal.getsignal(USR1) == signal.SIG_IGN


def test_a_child_that_was_forked_meanwhile_ends_as_ever():
    asked = []
    taken = Signals([TERM], lambda: not asked.append(1))
    taken.take()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    time.sleep(0.5)  # Python forgets the signals that come while it forks
    os.kill(child, TERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -TERM
    assert not asked
    taken.give_back()


def test_outside_of_the_main_thread_nothing_is_handled():
    taken = Signals([USR1], lambda: True)
    thread = threading.Thread(target=taken.take)
    thread.start()
    thread.join()
    assert signal.getsignal(USR1) == signal.SIG_DFL


def test_a_second_sigterm_ends_the_process_at_once():
    program = (
        "import os, signal\n"
        "from tf_adasum.backup import signals\n"
        "signals.SECONDS_OF_ONE = 0.0\n"
        "signals.Signals([signal.SIGTERM], lambda: True).take()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('goes on', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('not here', flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (-TERM, "goes on\n"), ended.stderr


def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_pipe():
    _, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    return writer


def full_disk():
    return os.open("/dev/full", os.O_WRONLY)


def closed():
    return None


@pytest.mark.parametrize("stderr", [broken_pipe, full_pipe, full_disk, closed])
def test_a_stderr_that_cannot_be_written_does_not_break_the_training(stderr):
    asked, before, other = [], os.dup(2), stderr()
    taken = Signals([USR1], lambda: not asked.append(1))
    taken.take()
    os.close(2) if other is None else os.dup2(other, 2)
    try:
        os.kill(os.getpid(), USR1)
    finally:
        os.dup2(before, 2)
    assert asked == [1]


def test_after_ctrl_c_the_exit_code_is_that_of_the_stop():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        taken = Signals([signal.SIGINT], lambda: True)
        taken.take()
        os.kill(os.getpid(), signal.SIGINT)
        taken.call_earlier()  # no KeyboardInterrupt
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
