"""Connects wrapper optimizers to Keras 3 and to their inner optimizers."""

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.updates import built_optimizers, overwrite_weights
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
        return own_variables(self) + self.inner_optimizer.variables


@hooks.overrides("_use_weight_decay")
class SelfDecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that decays weights in its own `update_step`.

    Keras would decay the weights before `update_step`. The attribute `weight_decay` is kept, so
    that other code can read it.
    """

    def _use_weight_decay(self, variable):
        """Return False, so that Keras does not decay weights before the step."""
        return False


def own_variables(optimizer):
    """Return the optimizer's own variables, without the variables of an inner optimizer."""
    return optimizer._variables[:]


def variables_to_save(optimizer):
    """Return those variables of a wrapper optimizer that Keras does not save itself."""
    return own_variables(optimizer)


def update_weight_ema(optimizer, count):
    """Update the moving averages of the weights, as Keras does. Called in each replica.

    `count` replaces Keras's count of iterations. The first update sets the averages to the weights.

    Args:
        optimizer: a built optimizer with `use_ema`.
        count: the number of earlier updates of the averages, an int64 scalar variable.
    """
    variables, averages = optimizer._trainable_variables, getattr(optimizer, MOVING_AVERAGES)
    for variable, average in zip(variables, averages, strict=True):
        momentum = tf.cast(tf.where(count == 0, 0.0, optimizer.ema_momentum), average.dtype)
        average.assign(momentum * average + (1 - momentum) * variable)
    overwrite_weights(optimizer, count)


def add_slots(wrapper, count):
    """Add variables for what differs between the virtual replicas of a device in an optimizer.

    Args:
        wrapper: a `WrapperBase` with a built inner optimizer.
        count: the number of virtual replicas of a device.

    Returns:
        A list of pairs: a variable of the inner optimizer, and the new variable with its values on
        the virtual replicas, ``[count, …]``.
    """
    inner = wrapper.inner_optimizer
    averages = {id(each) for each in getattr(inner, MOVING_AVERAGES, ())}
    pairs = []
    for slot in inner.variables:
        if slot.aggregation == "none" and id(slot) not in averages:

            def initial(shape, dtype, slot=slot):
                return tf.broadcast_to(tf.cast(slot, dtype), shape)

            options = {"dtype": slot.dtype, "name": f"virtual_{slot.name}"}
            slot.of_virtual_replicas = wrapper.add_variable(
                (count, *slot.shape), initial, **options
            )
            pairs.append((slot, slot.of_virtual_replicas))
    return pairs


def add_accumulator(optimizer):
    """Add an accumulator for a scalar of `Step.measure`, if the optimizer accumulates gradients.

    Args:
        optimizer: the built optimizer.
    """
    if optimizer.gradient_accumulation_steps:
        accumulator = optimizer.add_variable((), name="accumulator", dtype="float32")
        optimizer._accumulated_gradients.append(accumulator)


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
