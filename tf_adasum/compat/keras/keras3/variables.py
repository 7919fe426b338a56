"""Hooks into variables of Keras 3."""

import weakref

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizers import our_replica_context, tensorflow_variable
from tf_adasum.errors import see

# For each strategy: for each replica, by their ids, the variables that it has assigned.
_assigned = weakref.WeakKeyDictionary()

# The operations of updates that keep the largest or the smallest value.
_EXTREMES = {"Maximum": tf.reduce_max, "Minimum": tf.reduce_min}

# Attribute of a TensorFlow variable: the function that reduces the values of the replicas.
_REDUCTION = "reduction_of_tf_adasum"


@hooks.replaces(keras.Variable, "assign")
def assign(original, self, value):
    """Remember the variables that a replica assigns, also in the forward pass.

    Note which variables of metrics keep a maximum or a minimum, because reading a metric outside of
    the replicas reads the sum of the replicas' variables.

    Raise an error if a metric was created outside of the scope of the strategy, because each worker
    would measure only its own rows.

    With virtual replicas, optimizers assign in the last micro-batch, and other variables begin each
    micro-batch with their value before the step.
    """
    context = our_replica_context()
    if context:
        if self.aggregation == "sum" and context.num_replicas_in_sync > 1:
            refuse_outside(context.strategy, [self])
        step = context.strategy._virtual_replicas.step
        if step and not step.is_local:
            if step.hands_over and step.is_within_update:
                return value  # the optimizer assigns in the last micro-batch
            step.before_assignment(self)
        replica = tensorflow_compat.replica()
        of_replicas = _assigned.setdefault(context.strategy, {})
        of_replicas.setdefault(replica, weakref.WeakValueDictionary())[id(self)] = self
    result = original(self, value)
    if context:
        _note_extreme(self, value)
    return result


def outside(strategy, variables):
    """Yield those Keras variables of a list that were not created in the scope of a strategy."""
    for variable in variables:
        own = tensorflow_variable(variable)
        if isinstance(own, tf.Variable) and not strategy.extended.variable_created_in_scope(own):
            yield variable


def refuse_outside(strategy, variables):
    """Raise a ValueError if a metric's variable was created outside of the strategy's scope."""
    for variable in outside(strategy, variables):
        name = variable.path.rpartition("/")[0] or variable.path  # begins with the metric's name
        raise outside_scope(f"metric {name!r} was created")


def outside_scope(what):
    """Return an error for an object that was created outside of the scope."""
    return ValueError(
        f"The {what} outside of the scope of the strategy. Create models, optimizers and metrics, "
        f"and compile models, inside of `with strategy.scope():` {see('TFA-301')}"
    )


def take_assigned():
    """Return the variables that this replica has assigned since the last call, as a list."""
    context = our_replica_context()
    found = _assigned.get(context.strategy, {}).pop(tensorflow_compat.replica(), {})
    return list(found.values())


def forget_assigned(strategy):
    """Forget what the replicas of a strategy have assigned, because their function has ended."""
    _assigned.pop(strategy, None)


def _note_extreme(variable, value):
    operation = None if tf.executing_eagerly() else getattr(value, "op", None)
    reduction = _EXTREMES.get(operation and operation.type)
    if reduction and getattr(variable, "synchronization", "") == "on_read":
        setattr(variable._value, _REDUCTION, reduction)


def reduction_of(variable):
    """Return the function that reduces the replicas' values of a metric's variable, or None."""
    # A distributed variable looks other attributes up in its value, which would be reduced.
    return getattr(variable, "__dict__", {}).get(_REDUCTION)
