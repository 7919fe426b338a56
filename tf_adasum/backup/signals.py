"""Handles signals that stop a training, while the training runs. Standard library only."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from tf_adasum.backup import safe_print

# A second signal within this many seconds is ignored, because a scheduler may send one signal to
# the launcher and also to its workers.
SECONDS_OF_ONE = 1.0

# The signals that Slurm, Kubernetes and spot instances send.
USUAL = (signal.SIGTERM, signal.SIGUSR1)


def numbers_of(on_signal: object) -> tuple[int, ...]:
    """Return the numbers of the signals in the argument `on_signal` of `BackupAndRestore`.

    Raises:
        ValueError: if the argument is not a signal, or is a signal that no program can handle.
    """
    if on_signal is None:
        return ()
    if on_signal == "auto":
        return USUAL
    given = on_signal if isinstance(on_signal, list | tuple) else [on_signal]
    try:
        signals = {signal.Signals[s] if isinstance(s, str) else signal.Signals(s) for s in given}
        numbers = tuple(sorted(signals))
    except (KeyError, TypeError, ValueError):
        numbers = ()
    if not numbers or on_signal is True or {signal.SIGKILL, signal.SIGSTOP} & set(numbers):
        raise ValueError(
            "`on_signal` must be 'auto', a signal such as 'SIGTERM', a list of signals, or None. "
            f"No program can handle SIGKILL and SIGSTOP. Received: on_signal={on_signal!r}"
        )
    return numbers


class Signals:
    """Handles some signals, from the call of `install_handlers` to the call of `restore_handlers`.

    The first signal requests a stop. After a second signal, or at the end of the training, the
    previous handlers are active again.

    Args:
        numbers: the numbers of the signals.
        ask: function that the handler calls when the first signal arrives. It may interrupt the
            program at any line. If it returns False, the training no longer exists, and the
            previous handler is called.
        leaves_handlers: whether to leave a signal alone if the program has its own handler for this
            signal, or ignores it.

    Attributes:
        received: the number of the first signal; 0 before a signal.
    """

    def __init__(
        self, numbers: Iterable[int], ask: Callable[[], bool], leaves_handlers: bool = False
    ):
        self._numbers, self._ask, self._leaves_handlers = tuple(numbers), ask, leaves_handlers
        self._earlier: dict[int, object] = {}
        self.received, self._since, self._process = 0, 0.0, 0

    def install_handlers(self) -> None:
        """Install the handlers; Python can do this in the main thread only."""
        self.received, self._process = 0, os.getpid()
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            earlier = signal.getsignal(number)
            is_known = earlier is not None  # None: the handler was not installed from Python
            if is_known and (earlier == signal.SIG_DFL or not self._leaves_handlers):
                self._earlier[number] = signal.signal(number, self._handle)

    def restore_handlers(self) -> None:
        """Install the previous handlers again."""
        for number, earlier in self._earlier.items():
            if signal.getsignal(number) == self._handle:  # nobody has replaced it since
                signal.signal(number, earlier)
        self._earlier = {}

    def call_earlier(self) -> None:
        """Install the previous handlers, and call the previous handler of the received signal.

        Python's own handler of SIGINT is not called, because it would replace the exit status by a
        KeyboardInterrupt.
        """
        earlier = self._earlier.get(self.received)
        self.restore_handlers()
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(self.received, None)

    def _handle(self, number, frame):
        now = time.monotonic()
        if os.getpid() != self._process:  # a child, e.g. a data loader, ends as usual
            signal.signal(number, self._earlier[number])
            os.kill(os.getpid(), number)
        elif not self.received and self._ask():
            self.received, self._since = number, now
            name = signal.Signals(number).name
            safe_print.write_at_once(
                f"{name}: stopping with a backup at the next batch; a second signal stops at once"
            )
        elif not self.received or now - self._since > SECONDS_OF_ONE:
            self.restore_handlers()
            os.kill(os.getpid(), number)
