"""StopAtScaleInvariantStep: stop a training after a number of steps of the small batch."""

import keras

from tf_adasum import arguments
from tf_adasum.callbacks.configured import Configured
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import adascale


@keras.saving.register_keras_serializable("tf_adasum")
class StopAtScaleInvariantStep(Configured, keras.callbacks.Callback):
    """Callback that stops training when AdaScale's scale-invariant step τ reaches a total.

    τ is the same on all replicas, so all workers stop after the same step. Pass the callback on all
    workers. Pass to `fit` as many epochs as training needs at S = 1, with the small batch. If the
    total is already reached, another `fit` takes one step, because Keras can stop only after a
    step.

    Args:
        total: int or float, T, the number of steps that training takes at S = 1.

    Raises:
        ValueError: if `total` is not a positive number; when training starts, if the optimizer
            neither is nor wraps an `AdaScale`.

    Example:
        Ten steps of batch 4 become fewer steps of batch 8, made of two gradients of four rows:

        >>> sgd = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
        >>> model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
        >>> model.compile(tf_adasum.optimizers.AdaScale(sgd), "mse")
        >>> stop = tf_adasum.callbacks.StopAtScaleInvariantStep(10)
        >>> history = model.fit(x, y, batch_size=4, epochs=10, callbacks=[stop], verbose=0)
        >>> bool(10 <= model.optimizer.scale_invariant_steps < 12)
        True
    """

    arguments = ("total",)

    def __init__(self, total: float):
        super().__init__()
        expected = "must be a positive number: the steps that training takes at S = 1"
        arguments.check_number("total", total, expected, above=0)
        self.total = total

    def on_train_begin(self, logs=None):
        """Find the optimizer."""
        self._adascale = adascale.find_adascale(self.model.optimizer, "StopAtScaleInvariantStep")

    @keras_compat.ignores_batch_logs
    def on_train_batch_end(self, batch, logs=None):
        """Stop if the total is reached."""
        if float(self._adascale.scale_invariant_steps) >= self.total:
            self.model.stop_training = True
