"""StepTracker: when it measures, and how it draws."""

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
    tracker.on_train_begin()
    for epoch in range(epochs):
        tracker.on_epoch_begin(epoch)
        for first in range(0, steps, calls):
            tracker.on_train_batch_end(min(first + calls, steps) - 1)


@pytest.mark.parametrize(
    ("every", "calls", "steps"),
    [
        (1, 1, [1, 2, 4, 5, 7, 8, 10]),  # every third measurement is none
        (3, 1, [3, 6, 10]),  # 9 is none: asked again in the next step
        (4, 1, [4, 8]),
        (1, 2, [2, 4, 7, 9]),  # 5 and 10 end their epochs
        (2, 3, [3, 5, 10]),
        (6, 1, [6]),
        (100, 1, []),
    ],
)
def test_measures_every_so_many_steps(every, calls, steps):
    tracker = Counting(log_freq=every)
    run(tracker, epochs=2, steps=5, calls=calls)
    assert tracker.steps == steps
    assert len(tracker.values) == len(steps) and None not in tracker.values


def test_values_of_an_epoch_and_of_the_next_fit():
    tracker = Counting()
    run(tracker, epochs=1, steps=2)
    assert tracker.values_of_epoch == [1, 2]
    run(tracker, epochs=1, steps=2)
    assert tracker.values_of_epoch == [4] and tracker.steps == [1, 2, 4]
