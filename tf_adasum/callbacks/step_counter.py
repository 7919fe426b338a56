"""StepCounter: count the steps of a training over all epochs, and find every n-th step."""

import typing

from tf_adasum import errors


def frequency(name: str, value: typing.Any, every: typing.Any) -> typing.Any:
    """Return the frequency of a callback, which its old argument `every` may set.

    Args:
        name: the name of the argument.
        value: the value of the argument.
        every: the value of the old argument, or None.
    """
    if every is None:
        return value
    errors.deprecated("The argument `every`", f"`{name}`", stacklevel=4)
    return every


class StepCounter:
    """Counts steps (batches), and finds the steps in which an action is due.

    Args:
        every: int, the number of steps between two actions.

    Attributes:
        step: int, the number of steps so far.

    Example:
        >>> counter = StepCounter(every=2)
        >>> counter.begin_epoch()
        >>> [counter.end_batch(batch) for batch in range(2)]
        [False, True]
    """

    def __init__(self, every: int):
        self.every, self.step = every, 0
        self._before_epoch = self._last = 0

    def begin_epoch(self) -> None:
        """Begin an epoch, in which the numbers of batches start at 0 again."""
        self._before_epoch = self.step

    def end_batch(self, batch: int) -> bool:
        """Count up to the end of a batch, and return whether an action is due.

        An action is due in each step that is a multiple of `every`. If `steps_per_execution` skips
        this step, the action is due at the end of the execution. The action stays due until `done`
        is called.

        Args:
            batch: the number of the batch in its epoch, from 0.
        """
        self.step = self._before_epoch + batch + 1
        return self.step // self.every > self._last // self.every

    def done(self) -> None:
        """Mark the action as done, until the next action is due."""
        self._last = self.step
