"""StepCounter: the steps of a training, over all its epochs, and when it is time again."""


class StepCounter:
    """A counter of steps: calls of the training function.

    Args:
        every: int, how many steps are between two times.

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
        """Count up to the end of a batch, and say whether it is time.

        It is in each step that is a multiple of `every`, or the first one seen after such a step,
        as `steps_per_execution` leaves some out; from then on until `done` is called.

        Args:
            batch: the number of the batch in its epoch, from 0.
        """
        self.step = self._before_epoch + batch + 1
        return self.step // self.every > self._last // self.every

    def done(self) -> None:
        """Wait for the next time."""
        self._last = self.step
