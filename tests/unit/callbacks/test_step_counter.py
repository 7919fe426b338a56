"""StepCounter: steps over all epochs, and when it is time."""

import pytest

from tf_adasum.callbacks.step_counter import StepCounter


def times_of(counter, epochs, together=1):
    """The steps at which it is time, in epochs of five batches, so many in each call."""
    times = []
    for _ in range(epochs):
        counter.begin_epoch()
        for first in range(0, 5, together):
            if counter.end_batch(min(first + together, 5) - 1):
                times.append(counter.step)
                counter.done()
    return times


@pytest.mark.parametrize(
    ("every", "together", "times"),
    [
        (1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (3, 1, [3, 6, 9]),
        (5, 1, [5, 10]),
        (6, 1, [6]),
        (4, 3, [5, 8]),  # in steps 3 5 8 10: 4 is seen in 5
        (1, 5, [5, 10]),
        (11, 1, []),
    ],
)
def test_counts_over_epochs(every, together, times):
    assert times_of(StepCounter(every), 2, together) == times


def test_it_stays_time_until_done():
    counter = StepCounter(2)
    counter.begin_epoch()
    assert [counter.end_batch(batch) for batch in range(3)] == [False, True, True]
    counter.done()
    assert [counter.end_batch(batch) for batch in range(3, 5)] == [True, True]


def test_an_epoch_that_ends_early_and_one_that_begins_late():
    counter = StepCounter(100)
    counter.begin_epoch()
    counter.end_batch(1)
    counter.begin_epoch()
    counter.end_batch(4)  # as where the first batches are left out
    assert counter.step == 7
