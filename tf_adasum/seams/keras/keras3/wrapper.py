"""The methods that Keras 3 calls on a wrapper optimizer, and the calls to the inner optimizer."""

import keras
import tensorflow as tf

from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3.optimizers import overwrite_weights
from tf_adasum.seams.keras.keras3.private_names import MOVING_AVERAGES, BaseOptimizer

# The module with the class `LAMB`.
LAMB_MODULE = "tf_adasum.optimizers.lamb"

# What `keras.callbacks.SwapEMAWeights` looks for in an optimizer.
OF_SWAP_EMA_WEIGHTS: tuple[str, ...] = (MOVING_AVERAGES, "_trainable_variables")


class WrapperBase(keras.optimizers.Optimizer):
    """The methods that Keras calls on an optimizer that wraps another one.

    Subclasses have `inner_optimizer`, `learning_rate`, `build` and
    ``apply(gradients, variables)``, which takes a step.

    Args:
        name: name of the optimizer.
    """

    def __init__(self, name):
        super().__init__(learning_rate=lambda: self.learning_rate, name=name)

    def apply_gradients(self, grads_and_vars):
        """Take pairs of gradients and variables; return `iterations`."""
        super().apply_gradients(grads_and_vars)
        return self.iterations

    @property
    def variables(self):
        """The variables of this optimizer and of the inner one."""
        return own_variables(self) + self.inner_optimizer.variables


class SelfDecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that decays weights in its own `update_step`, and not before it, as Keras does.

    `weight_decay` is there to be read.
    """

    @hooks.overrides(BaseOptimizer)
    def _use_weight_decay(self, variable):
        """Keep Keras from decaying weights before the step."""
        return False


def own_variables(optimizer):
    """Return the variables of the optimizer itself, without an inner optimizer."""
    return optimizer._variables[:]


def variables_to_save(optimizer):
    """Return the variables of a wrapper that Keras does not save."""
    return own_variables(optimizer)


def average_weights(optimizer, count):
    """Move the moving averages of the weights as Keras does, for the `count`-th time from 0.

    Keras counts iterations, and starts the averages in the first.

    Args:
        optimizer: a built optimizer with `use_ema`; called in each replica.
        count: int64 scalar variable.
    """
    variables, averages = optimizer._trainable_variables, getattr(optimizer, MOVING_AVERAGES)
    for variable, average in zip(variables, averages, strict=True):
        momentum = tf.cast(tf.where(count == 0, 0.0, optimizer.ema_momentum), average.dtype)
        average.assign(momentum * average + (1 - momentum) * variable)
    overwrite_weights(optimizer, count)


def add_accumulator(optimizer):
    """Add an accumulator for one of the scalars of `Step.measure`, if there is accumulation.

    Args:
        optimizer: the built optimizer that accumulates.
    """
    if optimizer.gradient_accumulation_steps:
        accumulator = optimizer.add_variable((), name="accumulator", dtype="float32")
        optimizer._accumulated_gradients.append(accumulator)


def exchange_learning_rate(optimizer, learning_rate):
    """Give an optimizer another learning rate; return what it had.

    The property `learning_rate` takes a variable that it replaces out of a list that
    tf.train.Checkpoint tracks, which then refuses to save.

    Args:
        optimizer: the optimizer.
        learning_rate: a Keras variable, a schedule or another callable.
    """
    had, optimizer._learning_rate = optimizer._learning_rate, learning_rate
    return had


def floating(learning_rate):
    """Return a learning rate as a tensor that has fractions: a schedule may return an int."""
    learning_rate = tf.convert_to_tensor(keras.ops.convert_to_tensor(learning_rate))
    if learning_rate.dtype.is_floating:
        return learning_rate
    return tf.cast(learning_rate, keras.config.floatx())
