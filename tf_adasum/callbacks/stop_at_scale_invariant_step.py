"""StopAtScaleInvariantStep: trains for as many steps of the small batch as are due."""

import math
import numbers
import sys

import keras

from tf_adasum.optimizers import adascale
from tf_adasum.seams import keras as keras_seam


@keras.saving.register_keras_serializable("tf_adasum")
class StopAtScaleInvariantStep(keras.callbacks.Callback):
    """Stops training when AdaScale's scale-invariant step τ has reached a total.

    τ is the same on all replicas, and so all workers stop after the same step; pass it on all. The
    progress bar expects as many steps and epochs as are left at the gain of the moment, at most
    those that `fit` was asked for: give `fit` as many epochs as S = 1 would need. A `fit` after the
    total is reached takes one more step, as Keras asks after a step only.

    Args:
        total: T, the number of steps that training takes at S = 1.

    Raises:
        ValueError: if `total` is no positive number; when training starts, if the optimizer is no
            `AdaScale`, nor has one in it.

    Example:
        10,000 steps of batch 32 become fewer of batch 256 on 8 replicas:

        >>> stop = tf_adasum.callbacks.StopAtScaleInvariantStep(10_000)
        >>> model.fit(x, y, batch_size=256, epochs=1000, callbacks=[stop])
    """

    def __init__(self, total):
        super().__init__()
        is_number = isinstance(total, numbers.Real) and not isinstance(total, bool)
        if not is_number or not 0 < total <= sys.float_info.max:
            raise ValueError(
                "`total` is a positive number of steps, those that S = 1 takes. "
                f"Received: total={total!r}"
            )
        self.total = total

    def get_config(self):
        """Returns the constructor's arguments."""
        return {"total": self.total}

    @classmethod
    def from_config(cls, config):
        """Returns a callback made from what `get_config` returned."""
        return cls(**config)

    def on_train_begin(self, logs=None):
        """Finds the optimizer."""
        self._adascale = adascale.within(self.model.optimizer, "StopAtScaleInvariantStep")

    def on_epoch_begin(self, epoch, logs=None):
        """Tells the progress bar what is to be expected."""
        remaining = self.total - float(self._adascale.scale_invariant_steps)
        updates = max(1, math.ceil(remaining / float(self._adascale.gain)))
        steps = updates * keras_seam.accumulation_steps(self._adascale)
        steps_per_epoch = self.params["steps"]
        if steps_per_epoch:
            epochs = min(self.params["epochs"], epoch + math.ceil(steps / steps_per_epoch))
            keras_seam.expect(self.model, epochs=epochs, steps=min(steps, steps_per_epoch))

    def on_train_batch_end(self, batch, logs=None):
        """Stops, when it is time."""
        if float(self._adascale.scale_invariant_steps) >= self.total:
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        """Leaves the progress bar of the next training alone."""
        keras_seam.expect(self.model)
