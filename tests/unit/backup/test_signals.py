"""Signals that request a stop: which ones, the handlers before them, and a second signal."""

import concurrent.futures
import os
import signal
import time

import pytest

from tf_adasum.backup import signals
from tf_adasum.backup.signals import Signals, numbers_of

pytestmark = pytest.mark.version_independent

INT, USR1, USR2, TERM = signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM


@pytest.fixture
def called():
    """The signals that the program's own handler of SIGUSR1 has received."""
    received = []
    signal.signal(USR1, lambda number, frame: received.append(number))
    return received


def send(number):
    os.kill(os.getpid(), number)


def taken(*numbers, ask=lambda: True, **options):
    made = Signals(numbers, ask, **options)
    made.install_handlers()
    return made


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, ()),
        ("auto", (TERM, USR1)),
        (int(USR2), (USR2,)),
        (["SIGUSR2", "SIGTERM", TERM], (USR2, TERM)),
    ],
)
def test_names_and_numbers(given, expected):
    assert numbers_of(given) == expected


@pytest.mark.parametrize(
    "given", ["sigterm", 999, True, [], [None], "SIGKILL", ["SIGTERM", "SIGSTOP"]]
)
def test_refuses_what_is_no_signal(given):
    with pytest.raises(ValueError, match=r"`on_signal` must be .* Received: on_signal="):
        numbers_of(given)


def test_the_first_asks_and_the_handlers_before_come_back(called, capfd):
    asked = []
    stop = taken(USR1, USR2, ask=lambda: not asked.append(1))
    send(USR1)
    send(USR1)  # the same one, come twice
    assert (asked, called, stop.received) == ([1], [], USR1)
    assert capfd.readouterr().err.startswith("tf_adasum: SIGUSR1: stopping with a backup")
    stop.call_earlier()
    assert called == [USR1]
    assert signal.getsignal(USR2) == signal.SIG_DFL
    send(USR1)
    assert called == [USR1, USR1]


def test_handlers_of_the_program_are_left_alone(called):
    own = signal.getsignal(USR1)
    signal.signal(USR2, signal.SIG_IGN)
    stop = taken(USR1, USR2, TERM, leaves_handlers=True)
    assert signal.getsignal(USR1) is own and signal.getsignal(USR2) == signal.SIG_IGN
    assert signal.getsignal(TERM) not in (own, signal.SIG_DFL)
    stop.restore_handlers()
    assert signal.getsignal(TERM) == signal.SIG_DFL


def test_a_child_that_was_forked_meanwhile_ends_as_ever():
    asked = []
    stop = taken(TERM, ask=lambda: not asked.append(1))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"runs")  # Python forgets the signals that come while it forks
        for _ in range(300):
            time.sleep(0.1)  # one long wait would miss a signal that comes just before it
        os._exit(0)
    os.read(reader, 4)
    os.kill(child, TERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -TERM
    assert not asked
    stop.restore_handlers()


def test_a_second_sigterm_ends_the_process_at_once(monkeypatch):
    monkeypatch.setattr(signals, "SECONDS_OF_ONE", 0.0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        taken(TERM)
        send(TERM)
        os.write(writer, b"runs")
        send(TERM)
        os._exit(0)
    assert os.read(reader, 4) == b"runs"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -TERM


def test_a_stderr_that_cannot_be_written_does_not_break_the_training():
    asked, before = [], os.dup(2)
    taken(USR1, ask=lambda: not asked.append(1))
    try:
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), 2)
        send(USR1)
    finally:
        os.dup2(before, 2)
    assert asked == [1]


def test_after_ctrl_c_the_exit_code_is_that_of_the_stop():
    signal.signal(INT, signal.default_int_handler)
    stop = taken(INT)
    send(INT)
    stop.call_earlier()  # no KeyboardInterrupt
    assert signal.getsignal(INT) is signal.default_int_handler


def test_a_handler_that_came_later_stays():
    stop = taken(USR1)
    signal.signal(USR1, signal.SIG_IGN)
    stop.restore_handlers()
    assert signal.getsignal(USR1) == signal.SIG_IGN


def test_outside_of_the_main_thread_nothing_is_handled():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(taken, USR1).result()
    assert signal.getsignal(USR1) == signal.SIG_DFL
