"""Hooks into variables of Keras 3."""

import weakref

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizers import is_ours, our_replica_context, tensorflow_variable
from tf_adasum.compat.tracebacks import line_of_caller
from tf_adasum.errors import see


@hooks.replaces(keras.Variable, "__float__", "__int__", feature="float(variable), int(variable)")
def to_number(original, self):
    """Convert a variable that has a copy on each replica, such as `optimizer.learning_rate`.

    Python cannot convert TensorFlow's distributed variables, only their value.
    """
    value = self.value
    if not isinstance(value, tf.distribute.DistributedValues) or not tf.executing_eagerly():
        return original(self)
    return {"__float__": float, "__int__": int}[original.__name__](value.numpy())


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
    """
    context = our_replica_context()
    if context:
        if self.aggregation == "sum" and context.num_replicas_in_sync > 1:
            refuse_outside(context.strategy, self)
        of_replicas = _assigned.setdefault(context.strategy, {})
        of_replicas.setdefault(replica_of(context), weakref.WeakValueDictionary())[id(self)] = self
    result = original(self, value)
    if context:
        _note_extreme(self, value)
    return result


# For each metric that was created outside of the scope: the line that created the metric.
_lines_of_metrics = weakref.WeakKeyDictionary()


@hooks.replaces(keras.metrics.Metric, "__init__")
def make_metric(original, self, *args, **kwargs):
    """Store the line that creates a metric outside of the scope, for the error message."""
    if not is_ours(tf.distribute.get_strategy()):
        _lines_of_metrics[self] = line_of_caller(self)
    return original(self, *args, **kwargs)


def refuse_outside(strategy, variable):
    """Raise a ValueError if a metric's variable was created outside of the strategy's scope."""
    own = tensorflow_variable(variable)
    if not isinstance(own, tf.Variable) or strategy.extended.variable_created_in_scope(own):
        return
    metrics = [m for m in _lines_of_metrics if any(variable is v for v in m.variables)]
    name = metrics[-1].name if metrics else variable.path
    # It is not known if the metric is older than the strategy.
    line = _lines_of_metrics[metrics[-1]] if metrics else None
    raise ValueError(
        f"The metric {name!r} was created outside of the scope of the strategy"
        f"{f', at {line}' if line else ''}, so each worker would measure only its own "
        "rows. Create the metric inside of `with strategy.scope():`.\n\n"
        "    with strategy.scope():\n        metric = ...\n        model.compile(...)\n\n"
        f"{see('TFA-301')}"
    )


def take_assigned():
    """Return the variables that this replica has assigned since the last call, as a list."""
    context = our_replica_context()
    found = _assigned.get(context.strategy, {}).pop(replica_of(context), {})
    return list(found.values())


def replica_of(context):
    """Return the id of the replica of a replica context, as an int."""
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def _note_extreme(variable, value):
    operation = None if tf.executing_eagerly() else getattr(value, "op", None)
    reduction = _EXTREMES.get(operation and operation.type)
    if reduction and getattr(variable, "synchronization", "") == "on_read":
        setattr(variable._value, _REDUCTION, reduction)


def reduction_of(variable):
    """Return the function that reduces the replicas' values of a metric's variable, or None."""
    return getattr(variable, _REDUCTION, None)
