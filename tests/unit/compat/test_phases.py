"""The phases of `fit` and of the five other calls: their order, and what each does alone."""

import contextlib
import threading
from unittest import mock

import keras
import pytest

from tf_adasum.compat.keras import calls, phases


class Model:
    """A model with three of the six methods."""

    def __init__(self, strategy):
        self.distribute_strategy = strategy

    def fit(self, x, batch_size=None):
        return x, batch_size, calls.current_calls()

    def predict(self, x):
        return x

    def evaluate(self, x):
        raise ZeroDivisionError


@pytest.fixture
def noted(strategy, monkeypatch):
    """What begins and ends in calls of models of the strategy."""
    noted = []

    @contextlib.contextmanager
    def noting(name):
        noted.append(name)
        try:
            yield
        finally:
            noted.append(f"end of {name}")

    monkeypatch.setattr(strategy, "working_together", lambda: noting("together"))
    monkeypatch.setattr(strategy._workers, "compare_calls", lambda: noted.append("compared"))
    monkeypatch.setattr(strategy._sharding, "in_order", lambda: noting("in order"))
    monkeypatch.setattr(phases, "average_statistics", lambda model: noted.append("statistics"))
    return noted


@pytest.fixture
def fit(strategy):
    return calls.Call(Model.fit, Model(strategy), (1,), {})


def test_the_order_of_the_phases(strategy, noted):
    own = phases.Phases()
    own.settings = lambda call: noted.append("settings")
    own.scope = lambda call: noted.append("scope")
    own.data = lambda call: call.arguments.update(x=noted.append("data") or 7)
    before = ["settings", "together", "compared", "scope", "data"]
    assert own.run(Model.fit, Model(strategy), 1, batch_size=8) == (7, 8, "fit")
    assert noted == [*before, "end of together"]
    noted.clear()
    assert own.run(Model.predict, Model(strategy), 1) == 7
    within = ["statistics", "in order", "end of in order"]
    assert noted == [*before, *within, "end of together"]
    assert not calls.are_calls_under_way()


def test_an_error_ends_all_phases_and_has_a_short_traceback(strategy, noted):
    with mock.patch.object(phases.tracebacks, "shorten") as shorten:
        with pytest.raises(ZeroDivisionError) as caught:
            phases.Phases().run(Model.evaluate, Model(strategy), 1)
    shorten.assert_called_once_with(caught.value)
    assert noted[-1] == "end of together"
    assert not calls.are_calls_under_way()


def test_python_names_wrong_arguments(strategy):
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'epoch'"):
        phases.Phases().run(Model.fit, Model(strategy), 1, epoch=2)


def test_a_call_within_a_call_is_compared_too(strategy, noted, fit):
    own, inner = phases.Phases(), calls.Call(Model.predict, Model(strategy), (1,), {})
    with own.together(fit), own.together(inner):
        assert calls.current_calls() == "predict within fit"
        assert noted == ["together", "compared"] * 2


def test_calls_of_another_thread_are_separate(fit):
    seen = []
    with phases.Phases().together(fit):
        thread = threading.Thread(target=lambda: seen.append(calls.current_call()))
        thread.start()
        thread.join()
        assert (seen, calls.current_call()) == ([None], "fit")


def test_progress_bars_are_hidden_in_every_thread(fit, monkeypatch):
    monkeypatch.setattr(calls._Running, "hides_progress_bars", False)
    seen, is_shown = [], keras.utils.is_interactive_logging_enabled

    def run():
        with phases.Phases().together(fit):
            seen.append(is_shown())

    def in_a_thread():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    in_a_thread()
    try:
        calls.hide_progress_bars()
        in_a_thread()
        assert seen == [True, False] and not is_shown()
    finally:
        keras.utils.enable_interactive_logging()


def test_functions_run_when_fit_ends(fit):
    ended = []
    with phases.Phases().together(fit):
        calls.when_fit_ends(lambda: ended.append("fit"))
        assert not ended
    assert ended == ["fit"]
