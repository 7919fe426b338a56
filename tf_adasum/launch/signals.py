"""Receives the signals that stop a job. Uses only the standard library."""

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1,)  # Slurm's warning before the time limit, to all processes of a step


@contextlib.contextmanager
def signals_sent_to(events: queue.SimpleQueue) -> Iterator[None]:
    """Put stop signals into a queue, so that they do not interrupt the main thread.

    A stop signal that is ignored stays ignored (``nohup``, background jobs). If this is not the
    main thread, signals keep their usual effect, because Python handles them only in the main
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (*_STOP_SIGNALS, *PASSED_ON)}
    left_alone = (signal.SIG_IGN, None)  # None: not installed from Python, cannot be restored
    handled = [number for number in previous if previous[number] not in left_alone]
    for number in handled:  # SimpleQueue.put is reentrant, so a handler may call it
        signal.signal(number, lambda received, _: events.put(signal.Signals(received)))
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # exit statuses would be lost
        previous[signal.SIGCHLD] = signal.SIG_IGN
        handled.append(signal.SIGCHLD)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, previous[number])
