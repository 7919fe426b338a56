"""The steps of an optimizer, which a wrapper optimizer changes (Keras 2 and 3)."""

import contextlib

import tensorflow as tf


class BaseStep:
    """Takes the steps of an optimizer. Wrappers define subclasses that change the steps.

    The methods from `measure` on are called in each replica. The subclasses for Keras 2 and Keras 3
    define these methods, and wrappers override them:

    * `update(values, variables)` clips and reduces the gradients, decays weights and updates the
      variables. `values` has the gradients of `variables`, followed by the scalars of `measure`.
      With accumulation, each value is the mean over `gradient_accumulation_steps` calls.
    * `average()` updates the moving averages of the weights, and applies
      `ema_overwrite_frequency`. `update_averages(count)` does the same after `count` updates.

    A wrapper defines `build(wrapper, variables)`, which creates the variables that its steps need,
    after the optimizer was built for `variables`. The methods `add_variable` and
    `add_optimizer_variables` of the `WrapperBase` create them, and it saves them.

    Args:
        optimizer: the optimizer.

    Attributes:
        replicas: the number of replicas that take the step together.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self._calls_of_wrapper = 0
        self.enter(tf.distribute.get_strategy())

    def enter(self, strategy):
        """Set the strategy whose replicas take the step."""
        devices = strategy.num_replicas_in_sync
        self.replicas = getattr(strategy, "num_virtual_replicas", devices)

    @contextlib.contextmanager
    def called_by_wrapper(self):
        """Return a context manager in which the optimizer may take steps."""
        self._calls_of_wrapper += 1
        try:
            yield
        finally:
            self._calls_of_wrapper -= 1

    def check_caller(self):
        """Raise a ValueError if the optimizer was not called by its wrapper."""
        if not self._calls_of_wrapper:
            raise ValueError(
                f"This {type(self.optimizer).__name__} is wrapped by another optimizer, and "
                "cannot be used alone. Compile the model with the wrapper, or create a new "
                "optimizer."
            )

    def add_accumulator(self):
        """Add an accumulator for a scalar of `measure`, if the optimizer accumulates gradients.

        Called after the optimizer is built. The optimizers of Keras 2 never accumulate.
        """
        return  # AutoGraph needs a body

    def add_slots(self, wrapper, count):
        """Add variables for what differs between the virtual replicas of a device, in Keras 3.

        Args:
            wrapper: the `WrapperBase`, whose inner optimizer is built.
            count: the number of virtual replicas of a device.

        Returns:
            A list of pairs: a variable of the inner optimizer, and the new variable with its values
            on the virtual replicas, ``[count, …]``.
        """
        raise NotImplementedError

    def measure(self, gradients):
        """Return a list of scalars to accumulate with the gradients and to pass to `update`.

        Args:
            gradients: the gradients of this call, neither clipped nor reduced.
        """
        return []

    def skips(self):
        """Return whether this replica skips the step and the weight decay.

        Only subclasses whose steps do not reduce gradients may override this method.

        Returns:
            A boolean scalar, or None if no replica ever skips a step.
        """
        return None

    def assigned_in_forward_pass(self):
        """Return the weights that this replica has assigned since the last call, in Keras 3.

        Called before the optimizer assigns its variables.
        """
        return []


def step_of_wrapper(optimizer):
    """Return the step that a wrapper has set for an optimizer; None without a wrapper."""
    return getattr(optimizer, "step_of_wrapper", None)


def is_wrapped(optimizer):
    """Return whether a wrapper runs the updates of this optimizer."""
    return step_of_wrapper(optimizer) is not None
