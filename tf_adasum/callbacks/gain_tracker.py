"""GainTracker: measure AdaScale's estimates during training."""

import typing

import keras
import numpy as np

from tf_adasum.callbacks.step_tracker import StepTracker
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import adascale

if typing.TYPE_CHECKING:
    from matplotlib.axes import Axes


# The attributes of `AdaScale` that are measured.
MEASURED = (
    *("gain", "scale_invariant_steps", "effective_learning_rate"),
    *("gradient_variance", "gradient_squared_norm", "skipped_steps"),
)


@keras.saving.register_keras_serializable("tf_adasum")
class GainTracker(StepTracker):
    """Callback that adds AdaScale's gain ratio and estimates to the logs, and keeps them.

    History, CSVLogger and TensorBoard read the values from `logs`, so put loggers after this
    callback in the list. The progress bar shows only the gain. S is the number of small batches in
    a step, and lr is the learning rate or its schedule. The values are:

    * ``gain``: r, in [1, S]; at the end of an epoch the mean over its measured steps, or the last
      value if no step was measured;
    * ``scale_invariant_steps``: τ, the sum of all gains, which counts steps of the small batch;
    * ``effective_learning_rate``: η = r · lr(⌊τ⌋);
    * ``gradient_variance`` and ``gradient_squared_norm``: σ² and μ², moving averages;
    * ``skipped_steps``: the number of steps that were skipped because gradients were not finite.
      Steps that a `LossScaleOptimizer` already skips are not counted.

    Args:
        log_freq: int, the number of steps (batches) between two measurements. Each measurement
            waits for the step to end. Defaults to 1.

    Attributes:
        steps: list of the measured steps, counted from 1 over all epochs.
        values: list of dicts with the names above, one for each measured step.

    Raises:
        ValueError: if `log_freq` is not a positive int; when training starts, if the optimizer
            neither is nor wraps an `AdaScale`.

    Example:
        >>> sgd = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
        >>> model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
        >>> model.compile(tf_adasum.optimizers.AdaScale(sgd), "mse")
        >>> tracker = tf_adasum.callbacks.GainTracker()
        >>> history = model.fit(x, y, batch_size=4, epochs=3, callbacks=[tracker], verbose=0)
        >>> len(history.history["gain"]), len(tracker.values)
        (3, 12)
        >>> axes = tracker.plot().axes  # and .savefig("gain.png")
    """

    def on_train_begin(self, logs=None):
        """Get the optimizer."""
        self._adascale = adascale.find_adascale(self.model.optimizer, "GainTracker")

    def measure(self) -> dict[str, float]:
        """Return the values of this step, by name."""
        return {name: float(getattr(self._adascale, name)) for name in MEASURED}

    def show(self, value: dict[str, float], logs: dict[str, typing.Any]) -> None:
        """Put values into logs. The progress bar shows only the gain."""
        hidden = {name: keras_compat.Hidden(each) for name, each in value.items()}
        logs.update({**hidden, "gain": value["gain"]})

    def on_epoch_end(self, epoch, logs=None):
        """Put the values of the epoch into the logs."""
        values = self.measure()
        if self.values_of_epoch:
            values["gain"] = float(np.mean([each["gain"] for each in self.values_of_epoch]))
        if logs is not None:
            self.show(values, logs)

    def draw(self, axes: "Axes") -> None:
        """Draw the gain as a function of the scale-invariant step."""
        x, y = (
            [values[name] for values in self.values] for name in ("scale_invariant_steps", "gain")
        )
        axes.plot(x, y)
        axes.axhline(1, color="gray", linewidth=0.5)
        axes.set_xlabel("scale-invariant step τ")
        axes.set_ylabel("gain ratio r")
