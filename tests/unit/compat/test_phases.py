"""The phases of `fit` and of the five other calls, as seen by other code and in threads.

tests/multi_worker has what each phase does: test_differences.py, test_scopes.py, test_data.py.
"""

import contextlib
import threading
import types

import keras
import pytest

from tf_adasum.compat.base_strategy import GradientAggregatingStrategy
from tf_adasum.compat.keras import calls, phases


@GradientAggregatingStrategy.register
class Strategy:
    """A strategy of two replicas on one worker."""

    num_replicas_in_sync = num_virtual_replicas = 2
    _workers = types.SimpleNamespace(count=1, rank=0, compare_calls=lambda: None)
    working_together = _detecting_failures = contextlib.nullcontext


class Model:
    """A model with one of the six methods."""

    variables = (1.0,)

    def __init__(self):
        self.distribute_strategy = Strategy()

    def fit(self, x, batch_size=None):
        return x, batch_size


def call_of_fit():
    return calls.Call(Model.fit, Model(), [1], {})


def test_python_names_wrong_arguments():
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'epoch'"):
        phases.Phases().run(Model.fit, Model(), 1, epoch=2)


def test_calls_of_another_thread_are_separate():
    seen = []
    with phases.Phases().together(call_of_fit()):
        thread = threading.Thread(target=lambda: seen.append(calls.current_call()))
        thread.start()
        thread.join()
        assert (seen, calls.current_call()) == ([None], "fit")


def test_progress_bars_are_hidden_in_every_thread(monkeypatch):
    monkeypatch.setattr(calls._Running, "hides_progress_bars", False)
    seen, is_shown = [], keras.utils.is_interactive_logging_enabled

    def fit():
        with phases.Phases().together(call_of_fit()):
            seen.append(is_shown())

    def in_a_thread():
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()

    in_a_thread()
    try:
        calls.hide_progress_bars()
        in_a_thread()
        assert seen == [True, False] and not is_shown()
    finally:
        keras.utils.enable_interactive_logging()


def test_functions_run_when_fit_ends():
    ended = []
    with phases.Phases().together(call_of_fit()):
        calls.when_fit_ends(lambda: ended.append("fit"))
        assert not ended
    assert ended == ["fit"]
