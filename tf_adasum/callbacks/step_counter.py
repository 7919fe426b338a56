"""StepCounter: counts the steps of a training over all epochs, and finds every n-th one."""


class StepCounter:
    """A counter of steps: calls of the training function.

    Args:
        every: int, steps between two actions.

    Attributes:
        step: int, how many steps have been taken.

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
        """Take batches to be numbered from 0 again."""
        self._before_epoch = self.step

    def end_batch(self, batch: int) -> bool:
        """Count up to the end of a batch, and return whether an action is due.

        An action is due in each step that is a multiple of `every`. If `steps_per_execution` skips
        this step, it is due in the next one. It stays due until `done` is called.

        Args:
            batch: the number of the batch in its epoch, from 0.
        """
        self.step = self._before_epoch + batch + 1
        return self.step // self.every > self._last // self.every

    def done(self) -> None:
        """Mark the action as done, until the next one is due."""
        self._last = self.step
