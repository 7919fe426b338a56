"""The calls of `fit`, `evaluate`, `predict` and the `_on_batch` methods that run now.

Each thread has its own stack of calls, because another thread may call `predict` during `fit`.
"""

import contextlib
import copy
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tf_adasum.compat.keras.call_settings import Settings
from tf_adasum.health import call_log

# The methods of a model that run steps.
CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


class Call:
    """A call of one of the methods `CALLS` of a model.

    Args:
        method: Keras's method.
        model: the `keras.Model`.
        args: the positional arguments of the call.
        kwargs: the keyword arguments of the call.

    Attributes:
        name: the name of the method.
        model: the model.
        strategy: the strategy of the model.
        arguments: the arguments that were passed, by name. They can be changed before `result`.
        settings: the `Settings` that all workers need; empty with one worker.
        unread: the names of the calls within it whose steps return logs that no callback reads;
            None if the call has no list of callbacks of its own.
        steps: the number of steps that `count_step` has counted.

    Raises:
        TypeError: if the method does not take these arguments.
    """

    def __init__(self, method: Callable, model: Any, args: tuple, kwargs: dict):
        self.name, self.model, self.strategy = method.__name__, model, model.distribute_strategy
        self.settings, self.steps = Settings(), 0
        self.unread: frozenset[str] | None = None
        self._method, self._bound = method, _signature(method).bind(model, *args, **kwargs)
        self.arguments = self._bound.arguments

    def all_arguments(self) -> dict[str, Any]:
        """Return all arguments of the call by name, with the default values."""
        bound = copy.copy(self._bound)
        bound.apply_defaults()
        return {**bound.arguments, **bound.arguments.get("kwargs", {})}

    def result(self) -> Any:
        """Call Keras's method, and return its result."""
        return self._method(*self._bound.args, **self._bound.kwargs)


_signature = functools.cache(inspect.signature)


class _Running(threading.local):
    """What runs in this thread.

    Attributes:
        calls: list of `Call`, the outermost first.
        ends: for each running `fit`, the `contextlib.ExitStack` that is closed at its end.
        hides_progress_bars: whether this worker leaves progress bars to the first worker.
    """

    hides_progress_bars = False

    def __init__(self):
        self.calls: list[Call] = []
        self.ends: list[contextlib.ExitStack] = []
        if self.hides_progress_bars:  # Keras has a setting for each thread
            keras.utils.disable_interactive_logging()


_here = _Running()


def hide_progress_bars() -> None:
    """Let Keras print nothing in this thread and in later threads."""
    _Running.hides_progress_bars = True
    keras.utils.disable_interactive_logging()


@contextlib.contextmanager
def running(call: Call) -> Iterator[None]:
    """Return a context manager within which a call that all workers make runs."""
    _here.calls.append(call)
    try:
        with call_log.call(call.name):
            yield
    finally:
        _here.calls.pop()


@contextlib.contextmanager
def ending(name: str) -> Iterator[None]:
    """Return a context manager that runs the functions of `when_fit_ends`, if `name` is "fit"."""
    with contextlib.ExitStack() as stack:
        if name == "fit":
            _here.ends.append(stack)
            stack.callback(_here.ends.pop)
        yield


def are_calls_under_way() -> bool:
    """Return whether `fit` or another call that all workers make is running."""
    return bool(_here.calls)


def when_fit_ends(function: Callable[[], Any]) -> None:
    """Call a function when the running `fit` ends or fails. In a custom loop, do nothing."""
    if _here.ends:
        _here.ends[-1].callback(function)


def skip_log_reduction(names: Iterable[str]) -> None:
    """Let the steps of calls return logs that are not averaged, because no callback reads them.

    All workers have to call this function with the same names. If a call has several lists of
    callbacks, each of them calls this function, and the names that all lists have count.

    Args:
        names: "fit" or "evaluate" or both, within the innermost running call.
    """
    if _here.calls:
        call = _here.calls[-1]
        call.unread = frozenset(names) if call.unread is None else call.unread.intersection(names)


def reduces_logs(name: str | None) -> bool:
    """Return whether the steps of `fit` or `evaluate` have to average their logs.

    Args:
        name: "fit" or "evaluate"; averages them if another call is running.
    """
    decided = [call.unread for call in _here.calls if call.unread is not None]
    return not decided or _here.calls[-1].name != name or name not in decided[-1]


def count_step() -> int:
    """Count a step of the innermost running call, and return the number of its counted steps."""
    _here.calls[-1].steps += 1
    return _here.calls[-1].steps


def current_call() -> str | None:
    """Return the name of the innermost running call that all workers make, or None."""
    return _here.calls[-1].name if _here.calls else None


def current_calls() -> str:
    """Return the names of all running calls as text, such as "evaluate within fit"."""
    return " within ".join(call.name for call in reversed(_here.calls)) or "none"


def current_call_settings() -> Settings:
    """Return the `Settings` of the innermost running call. If no call runs, they are empty."""
    return _here.calls[-1].settings if _here.calls else Settings()
