"""StepTracker: when it measures, and what it says where it cannot draw."""

import sys

import keras
import pytest

from tf_adasum.callbacks.step_tracker import StepTracker


class Counting(StepTracker):
    """Measures how often it was asked; every third time there is nothing."""

    asked = 0

    def measure(self):
        self.asked += 1
        return None if self.asked % 3 == 0 else self.asked

    def draw(self, axes):
        axes.plot(self.steps, self.values)


def run(tracker, epochs, steps, calls=1):
    """As `fit` does, with so many steps in each call of the training function."""
    for epoch in range(epochs):
        tracker.on_epoch_begin(epoch)
        for first in range(0, steps, calls):
            tracker.on_train_batch_begin(first)
            tracker.on_train_batch_end(min(first + calls, steps) - 1)


@pytest.mark.parametrize("every", [0, -1, 1.0, True, None, "2"])
def test_refuses_another_distance(every):
    with pytest.raises(ValueError, match=f"`every` must be .* Received: every={every!r}"):
        StepTracker(every=every)


@pytest.mark.parametrize(
    ("every", "calls", "steps"),
    [
        (1, 1, [1, 2, 4, 5, 7, 8, 10]),  # every third measurement is none
        (3, 1, [3, 6, 10]),  # 9 is none: asked again in the next step
        (4, 1, [4, 8]),
        (1, 2, [2, 4, 7, 9]),  # 5 and 10 end their epochs
        (2, 3, [3, 5, 10]),
        (100, 1, []),
    ],
)
def test_measures_every_so_many_steps(every, calls, steps):
    tracker = Counting(every=every)
    run(tracker, epochs=2, steps=5, calls=calls)
    assert tracker.steps == steps
    assert len(tracker.values) == len(steps) and None not in tracker.values


def test_values_of_an_epoch_and_of_the_next_fit():
    tracker = Counting()
    run(tracker, epochs=1, steps=2)
    assert tracker.values_of_epoch == [1, 2]
    run(tracker, epochs=1, steps=2)
    assert tracker.values_of_epoch == [4] and tracker.steps == [1, 2, 4]


def test_is_to_be_subclassed():
    for method in (StepTracker().measure, lambda: StepTracker().draw(None)):
        with pytest.raises(NotImplementedError):
            method()


def test_draws():
    figure = pytest.importorskip("matplotlib.figure")
    tracker = Counting()
    with pytest.raises(RuntimeError, match=r"call plot\(\) after fit\(\)"):
        tracker.plot()
    run(tracker, epochs=1, steps=5)
    drawn = tracker.plot()
    assert isinstance(drawn, figure.Figure)
    assert tuple(drawn.get_size_inches()) == tracker.figure_inches
    axes = figure.Figure().subplots()
    assert tracker.plot(axes) is axes.figure
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 4, 5]


def test_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    tracker = Counting()
    run(tracker, epochs=1, steps=1)
    with pytest.raises(ImportError, match="plot needs matplotlib: pip install matplotlib"):
        tracker.plot()


def test_configuration():
    assert Counting.from_config(Counting(every=3).get_config()).every == 3
    assert isinstance(Counting(), keras.callbacks.Callback)
