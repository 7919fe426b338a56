"""The phases of `fit` and of the five other calls: their order, and what each does alone."""

import contextlib
import threading
import types
from unittest import mock

import keras
import pytest

from tf_adasum.compat.base_strategy import GradientAggregatingStrategy
from tf_adasum.compat.keras import calls, phases


@GradientAggregatingStrategy.register
class Strategy:
    """A strategy of two replicas on one worker, which notes what begins and ends."""

    num_replicas_in_sync = num_virtual_replicas = 2

    def __init__(self):
        self.noted = []
        self._workers = types.SimpleNamespace(
            count=1, rank=0, compare_calls=lambda: self.noted.append("compared")
        )
        self._sharding = types.SimpleNamespace(in_order=lambda: self.noting("in order"))

    @contextlib.contextmanager
    def noting(self, name):
        self.noted.append(name)
        try:
            yield
        finally:
            self.noted.append(f"end of {name}")

    def working_together(self):
        return self.noting("together")

    def _detecting_failures(self):
        return self.noting("detecting")

    def average_statistics(self, model):
        self.noted.append("statistics")


class Model:
    """A model with three of the six methods."""

    variables = (1.0,)

    def __init__(self):
        self.distribute_strategy = Strategy()

    def fit(self, x, batch_size=None):
        return x, batch_size, calls.current_calls()

    def predict(self, x):
        return x

    def evaluate(self, x):
        raise ZeroDivisionError


def call_of(method, *args):
    return calls.Call(method, Model(), args, {})


class Noting(phases.Phases):
    """Notes which phases run."""

    def settings(self, call):
        call.strategy.noted.append("settings")

    def scope(self, call):
        call.strategy.noted.append("scope")

    def data(self, call):
        call.strategy.noted.append("data")
        call.arguments["x"] = 7

    def statistics(self, call):
        return call.strategy.noting("statistics")


def test_the_order_of_the_phases():
    model = Model()
    assert Noting().run(Model.fit, model, 1, batch_size=8) == (7, 8, "fit")
    assert model.distribute_strategy.noted == [
        *("settings", "together", "compared", "scope", "data", "statistics"),
        *("end of statistics", "end of together"),
    ]
    assert not calls.are_calls_under_way()


def test_an_error_ends_all_phases_and_has_a_short_traceback():
    model = Model()
    with mock.patch.object(phases.tracebacks, "shorten") as shorten:
        with pytest.raises(ZeroDivisionError) as caught:
            Noting().run(Model.evaluate, model, 1)
    shorten.assert_called_once_with(caught.value)
    assert model.distribute_strategy.noted[-1] == "end of together"
    assert not calls.are_calls_under_way()


def test_python_names_wrong_arguments():
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'epoch'"):
        phases.Phases().run(Model.fit, Model(), 1, epoch=2)


def test_statistics_alone():
    call = call_of(Model.predict, 1)
    with phases.Phases().statistics(call):
        assert call.strategy.noted == ["statistics", "in order"]
    call = call_of(Model.fit, 1)
    with phases.Phases().statistics(call):
        assert call.strategy.noted == []


def test_a_call_within_a_call_is_compared_too():
    own = phases.Phases()
    inner = call_of(Model.predict, 1)
    with own.together(call_of(Model.fit, 1)), own.together(inner):
        assert calls.current_calls() == "predict within fit"
        assert inner.strategy.noted == ["together", "compared"]


def test_calls_of_another_thread_are_separate():
    seen = []
    with phases.Phases().together(call_of(Model.fit, 1)):
        thread = threading.Thread(target=lambda: seen.append(calls.current_call()))
        thread.start()
        thread.join()
        assert (seen, calls.current_call()) == ([None], "fit")


def test_progress_bars_are_hidden_in_every_thread(monkeypatch):
    monkeypatch.setattr(calls._Running, "hides_progress_bars", False)
    seen, is_shown = [], keras.utils.is_interactive_logging_enabled

    def fit():
        with phases.Phases().together(call_of(Model.fit, 1)):
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
    with phases.Phases().together(call_of(Model.fit, 1)):
        calls.when_fit_ends(lambda: ended.append("fit"))
        assert not ended
    assert ended == ["fit"]
