"""Connects wrapper optimizers to Keras 3 and to their inner optimizers."""

import keras

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.updates import built_optimizers
from tf_adasum.compat.keras.private_names_keras3 import MOVING_AVERAGES

# The module with the class `LAMB`.
LAMB_MODULE = "tf_adasum.optimizers.lamb"

# The attributes of an optimizer that `keras.callbacks.SwapEMAWeights` uses.
OF_SWAP_EMA_WEIGHTS: tuple[str, ...] = (MOVING_AVERAGES, "_trainable_variables")


class WrapperBase(keras.optimizers.Optimizer):
    """The base class of optimizers that wrap another optimizer.

    Subclasses define `inner_optimizer`, `learning_rate`, `build` and
    ``apply(gradients, variables)``, which takes a step.

    Args:
        name: name of the optimizer.
    """

    def __init__(self, name):
        super().__init__(learning_rate=lambda: self.learning_rate, name=name)
        built_optimizers.add(self)

    def apply_gradients(self, grads_and_vars):
        """Take a step with pairs of gradients and variables, and return `iterations`."""
        super().apply_gradients(grads_and_vars)
        return self.iterations

    @property
    def variables(self):
        """The variables of this optimizer and of the inner optimizer."""
        return self._variables + self.inner_optimizer.variables

    def _variables_to_save(self):
        """Return the variables that Keras does not save itself: those without the inner ones."""
        return self._variables[:]


@hooks.overrides("_use_weight_decay")
class SelfDecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that decays weights in its own `update_step`.

    Keras would decay the weights before `update_step`. The attribute `weight_decay` is kept, so
    that other code can read it.
    """

    def _use_weight_decay(self, variable):
        """Return False, so that Keras does not decay weights before the step."""
        return False


def swap_learning_rate(optimizer, learning_rate):
    """Replace the learning rate of an optimizer, and return the previous learning rate.

    The property `learning_rate` is not used, because it removes the previous variable from a list
    that tf.train.Checkpoint tracks. After such a removal, tf.train.Checkpoint refuses to save.

    Args:
        optimizer: the optimizer.
        learning_rate: a Keras variable, a schedule or another callable.
    """
    had, optimizer._learning_rate = optimizer._learning_rate, learning_rate
    return had
