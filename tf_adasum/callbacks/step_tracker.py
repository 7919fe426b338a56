"""StepTracker: what callbacks share that measure something every so many steps, and plot it."""

import keras


class StepTracker(keras.callbacks.Callback):
    """Calls `measure` every `every` steps, and keeps what it returns.

    Args:
        every: steps (calls of the training function) between two measurements.

    Attributes:
        steps: list of the steps measured, counted from 1 over all epochs.
        values: list of what was measured, one entry for each step.

    Raises:
        ValueError: if `every` is no positive int.
    """

    figure_inches = (8, 4)  # of what `plot` makes

    def __init__(self, every=1):
        super().__init__()
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"`every` must be an int of 1 or more. Received: every={every!r}")
        self.every = every
        self.steps, self.values = [], []
        self._step = 0

    def measure(self):
        """Returns what is to be kept for this step; None for nothing."""
        raise NotImplementedError

    def draw(self, axes):
        """Draws what was measured on `matplotlib.axes.Axes`."""
        raise NotImplementedError

    def get_config(self):
        """Returns the constructor's arguments."""
        return {"every": self.every}

    @classmethod
    def from_config(cls, config):
        """Returns a callback made from what `get_config` returned."""
        return cls(**config)

    def on_epoch_begin(self, epoch, logs=None):
        """Starts an epoch."""
        self._before_epoch = self._step
        self._first_of_epoch = len(self.values)

    def on_train_batch_end(self, batch, logs=None):
        """Measures, when it is time."""
        last_measured = self.steps[-1] if self.steps else 0
        self._step = self._before_epoch + batch + 1
        if self._step // self.every > last_measured // self.every:
            value = self.measure()
            if value is not None:
                self.steps.append(self._step)
                self.values.append(value)

    @property
    def values_of_epoch(self):
        """What was measured in this epoch."""
        return self.values[self._first_of_epoch :]

    def plot(self, axes=None):
        """Draws what was measured.

        Args:
            axes: `matplotlib.axes.Axes` to draw on; None makes a figure.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            ImportError: without matplotlib (``pip install tf_adasum[plot]``).
            RuntimeError: before anything was measured.
        """
        if not self.values:
            raise RuntimeError("Nothing was measured yet: call plot() after fit().")
        try:
            from matplotlib import figure
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__}.plot needs matplotlib: pip install 'tf_adasum[plot]'"
            ) from error
        if axes is None:
            drawing = figure.Figure(figsize=self.figure_inches, layout="constrained")
            axes = drawing.subplots()
        self.draw(axes)
        return axes.figure
