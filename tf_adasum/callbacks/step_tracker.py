"""StepTracker: base class of callbacks that measure something every few steps, and plot it."""

import typing

import keras

from tf_adasum import arguments
from tf_adasum.callbacks.configured import Configured
from tf_adasum.callbacks.plotting import Plotting
from tf_adasum.callbacks.step_counter import StepCounter, frequency
from tf_adasum.compat import keras as keras_compat


class StepTracker(Configured, Plotting, keras.callbacks.Callback):
    """Callback that calls `measure` once in `log_freq` steps, and keeps the result.

    Args:
        log_freq: int, the number of steps (batches) between two measurements. Defaults to 1.
        every: the old name of `log_freq`.

    Attributes:
        steps: list of the measured steps, counted from 1 over all epochs.
        values: list of the measurements, one for each of these steps.

    Raises:
        ValueError: if `log_freq` is not a positive int.
    """

    arguments: tuple[str, ...] = ("log_freq",)

    def __init__(self, log_freq: int = 1, *, every: int | None = None):
        super().__init__()
        log_freq = frequency("log_freq", log_freq, every)
        arguments.check_count("log_freq", log_freq)
        self.log_freq = log_freq
        self.steps: list[int] = []
        self.values: list[typing.Any] = []
        self._counter = StepCounter(log_freq)

    def measure(self) -> typing.Any:
        """Return the value to keep for this step, or None to keep nothing."""
        raise NotImplementedError

    def show(self, value: typing.Any, logs: dict[str, typing.Any]) -> None:
        """Put the last measured value into the logs of a batch. Does nothing by default."""

    def on_epoch_begin(self, epoch, logs=None):
        """Start an epoch."""
        self._counter.begin_epoch()
        self._first_of_epoch = len(self.values)

    @keras_compat.ignores_batch_logs
    def on_train_batch_end(self, batch, logs=None):
        """Measure if a measurement is due, and show the last one."""
        if self._counter.end_batch(batch):
            value = self.measure()
            if value is not None:
                self.steps.append(self._counter.step)
                self.values.append(value)
                self._counter.done()
        if self.values and logs is not None:
            self.show(self.values[-1], logs)

    @property
    def values_of_epoch(self) -> list[typing.Any]:
        """The measured values of this epoch."""
        return self.values[self._first_of_epoch :]
