"""Hooks into the steps of Keras 2's optimizers.

There are new-style optimizers (`Optimizer`) and legacy optimizers (`OptimizerV2`). The optimizers
of `tf.keras.optimizers.legacy` and of TensorFlow Addons are legacy optimizers.
"""

import contextlib

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizer_steps import step_of_wrapper
from tf_adasum.compat.keras.optimizer_variables_keras2 import distributed, key_of
from tf_adasum.compat.keras.optimizers import (
    aggregation_states_of,
    apply_unless_nonfinite,
    at_places,
    combine,
    is_ours,
    our_replica_context,
    path_of,
    set_aggregation_state,
)
from tf_adasum.compat.keras.private_names_keras2 import (
    BaseLossScaleOptimizer,
    Optimizer,
    OptimizerV2,
    optimizer_utils,
)

OPTIMIZERS = (Optimizer, OptimizerV2)
LOSS_SCALE_OPTIMIZERS = (BaseLossScaleOptimizer,)

# The type of the optimizers' variables.
VARIABLE_TYPES = (tf.Variable,)


def build(optimizer, variables):
    """Create an optimizer's own variables if they do not exist yet, and store `variables`.

    This is done once for all replicas. Otherwise, each replica would create its own variables.
    """
    optimizer, variables = _without_loss_scale(optimizer), tuple(map(distributed, variables))
    if is_built(optimizer) and not _met_first(optimizer, variables):
        return
    context = tf.distribute.get_replica_context()
    if context and tf.distribute.has_strategy():
        context.merge_call(lambda strategy: _build(optimizer, variables, strategy))
    else:
        _build(optimizer, variables)


def _build(optimizer, variables, strategy=None):
    had_variables, first = is_built(optimizer), _met_first(optimizer, variables)
    met = (*getattr(optimizer, "first_variables", ()), *first)
    is_legacy = isinstance(optimizer, OptimizerV2)
    if had_variables and not is_legacy:
        optimizer.first_variables = met
        return
    # `init_scope` leaves the traced function and the strategy's scope, so enter the scope.
    scope = strategy.scope if strategy else contextlib.nullcontext
    with tf.init_scope(), scope(), tf.name_scope(_name_of(optimizer)):
        (state,) = aggregation_states_of(optimizer)[-1:] or [None]
        if state is not None:
            state.extend(map(path_of, first))  # first, because it may raise an error
        optimizer.first_variables = met
        if is_legacy:
            optimizer._create_all_weights(first)
            _set_aggregation_state_of_ours(optimizer)
        else:
            optimizer.build(optimizer.first_variables)


def _set_aggregation_state_of_ours(optimizer):
    """Set an optimizer's `AggregationState` if it is built under one of our strategies."""
    strategy = tf.distribute.get_strategy()
    is_outside = tf.distribute.in_cross_replica_context()
    if is_ours(strategy) and is_outside and not aggregation_states_of(optimizer):
        set_aggregation_state(optimizer, strategy)


def _met_first(optimizer, variables):
    """Return the variables that are new to an optimizer.

    A new-style optimizer has all variables from the start. Legacy optimizers accept new variables
    at any time, such as the variables of layers that were unfrozen.
    """
    known = getattr(optimizer, "first_variables", None)
    if known is None:
        return variables
    if not isinstance(optimizer, OptimizerV2):
        return ()
    keys = set(map(key_of, known))
    return tuple(variable for variable in variables if key_of(variable) not in keys)


def _name_of(optimizer):
    return optimizer._name if isinstance(optimizer, OptimizerV2) else optimizer.name


@hooks.replaces(Optimizer, "build")
def build_with_reductions(original, self, var_list):
    """Create the aggregation rule's variables, which have to exist when weights are loaded."""
    _refuse_nadam(self)
    original(self, var_list)
    if not hasattr(self, "first_variables"):
        self.first_variables = tuple(map(distributed, var_list))
    _set_aggregation_state_of_ours(self)


def _refuse_nadam(optimizer):
    strategy = tf.distribute.get_strategy()
    if not isinstance(optimizer, keras.optimizers.Nadam) or not is_ours(strategy):
        return
    if len(strategy.extended.worker_devices) > 1:
        raise ValueError(
            "tf.keras.optimizers.Nadam counts its steps in Python, once for each device. With "
            "several devices the weights of the replicas would diverge, under any strategy of "
            "TensorFlow. Use tf.keras.optimizers.legacy.Nadam, or one device per worker. "
            f"Received: {len(strategy.extended.worker_devices)} devices"
        )


@hooks.replaces(Optimizer, "aggregate_gradients")
@hooks.replaces(OptimizerV2, "_aggregate_gradients")
def aggregate_gradients(original, self, grads_and_vars):
    """Mark the reduction as a reduction of gradients, and give each gradient its static shape."""
    context = our_replica_context()
    is_users_own = getattr(self, "gradient_aggregator", None) not in (
        None,
        optimizer_utils.all_reduce_sum_gradients,
    )
    if not context or is_users_own:
        return original(self, grads_and_vars)
    grads_and_vars = list(grads_and_vars)
    if context.strategy.are_gradients_combined:
        return grads_and_vars
    present = optimizer_utils.filter_empty_gradients(grads_and_vars)
    if not present:
        return grads_and_vars
    every = [variable for _, variable in grads_and_vars]
    build(self, every)
    gradients, variables = zip(*present, strict=True)
    gradients = context.strategy._empty_replicas.zero_where_empty(gradients)
    are_present = [gradient is not None for gradient, _ in grads_and_vars]
    combined = at_places(are_present, combine(self, gradients, variables))
    return list(zip(combined, every, strict=True))


@hooks.replaces(Optimizer, "apply_gradients")
@hooks.replaces(OptimizerV2, "apply_gradients")
def apply_gradients(original, self, grads_and_vars, name=None, *args, **kwargs):
    """Zero the gradients of a replica without rows, and let `on_nonfinite` skip a step.

    Every step of an optimizer begins with this method. If the optimizer is inside a wrapper such as
    `AdaScale`, call the wrapper's update in place of the optimizer's own update.
    """
    grads_and_vars = list(grads_and_vars)
    step = step_of_wrapper(self)
    if step is not None and grads_and_vars:
        build(self, [variable for _, variable in grads_and_vars])
        gradients, variables = zip(
            *optimizer_utils.filter_empty_gradients(grads_and_vars), strict=True
        )
        step.check_caller()
        step.update([*gradients, *step.measure(gradients)], variables)
        step.average()
        return self.iterations
    is_reduced = args or kwargs.get("skip_gradients_aggregation")
    is_reduced = is_reduced or not kwargs.get("experimental_aggregate_gradients", True)
    if not grads_and_vars or is_reduced:
        return original(self, grads_and_vars, name, *args, **kwargs)
    gradients, variables = zip(*grads_and_vars, strict=True)

    def take(gradients):
        original(self, zip(gradients, variables, strict=True), name, **kwargs)

    apply_unless_nonfinite(self, gradients, variables, take, build)
    return self.iterations


def apply(optimizer, gradients, variables):
    """Let an optimizer take a step with this replica's gradients."""
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def _without_loss_scale(optimizer):
    is_outer = isinstance(optimizer, LOSS_SCALE_OPTIMIZERS)
    return optimizer.inner_optimizer if is_outer else optimizer


def is_built(optimizer):
    """Return whether the optimizer's own variables exist."""
    optimizer = _without_loss_scale(optimizer)
    if hasattr(optimizer, "inner_optimizer"):  # a `WrapperBase`
        return optimizer.built
    if isinstance(optimizer, OptimizerV2):
        return hasattr(optimizer, "first_variables")
    return bool(getattr(optimizer, "_built", False))


def all_variables(optimizer):
    """Return all variables of an optimizer, as a list."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
