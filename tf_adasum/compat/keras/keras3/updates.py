"""Hooks into the steps of Keras 3's optimizers."""

import contextlib
import functools
import weakref

import keras
import tensorflow as tf

from tf_adasum.compat.keras.custom_loops import refuse_update_outside
from tf_adasum.compat.keras.generation import hooks, index_of
from tf_adasum.compat.keras.keras3.variables import outside, take_assigned
from tf_adasum.compat.keras.optimizer_steps import BaseStep, step_of_wrapper
from tf_adasum.compat.keras.optimizers import (
    HandedOver,
    apply_unless_nonfinite,
    combine,
    cond,
    divide_variables,
    divided,
    hint_at_delta_adasum,
    is_ours,
    joined,
    optimizers_within,
    our_replica_context,
    set_aggregation_state,
    step_of_virtual_replicas,
    tensorflow_variable,
    weighted_to_accumulate,
)
from tf_adasum.compat.keras.private_names_keras3 import (
    MOVING_AVERAGES,
    MULTI_OPTIMIZER,
    BaseOptimizer,
    MultiOptimizer,
    TFOptimizer,
)
from tf_adasum.compat.thread_flag import ThreadFlag
from tf_adasum.errors import see

ACCUMULATES = (
    "`gradient_accumulation_steps` and `virtual_replicas` exclude each other, because each virtual "
    "replica would need its own accumulated gradients. Use more virtual replicas, and remove "
    f"gradient_accumulation_steps. {see('TFA-316')}"
)
WITHIN_A_BRANCH = (
    "An optimizer takes a step within a branch or a loop of a replica's function, such as "
    "`tf.cond`, where replicas cannot exchange gradients. Take a step in each call of the "
    "function. To accumulate gradients, pass gradient_accumulation_steps to the optimizer, or "
    f"decide outside of `strategy.run` which function to run. {see('TFA-315')}"
)

OPTIMIZERS = (keras.optimizers.Optimizer,)
LOSS_SCALE_OPTIMIZERS = (keras.optimizers.LossScaleOptimizer,)

# The types of the optimizers' variables.
VARIABLE_TYPES = (keras.Variable, tf.Variable)


def build(optimizer, variables):
    """Create an optimizer's own variables if they do not exist yet."""
    if not optimizer.built:
        with keras.name_scope(optimizer.name):
            optimizer.build(list(variables))
        optimizer.built = True


@hooks.replaces(BaseOptimizer, "build")
def build_with_reductions(original, self, variables):
    """Create the aggregation rule's variables, which have to exist when weights are loaded."""
    holder = _building.value
    if holder is not None and is_ours(holder._distribution_strategy):
        # A function may have made it outside of the scope, for a `MultiOptimizer`.
        bring_inside(holder._distribution_strategy, self)
    original(self, variables)
    built_optimizers.add(self)
    if holder is None:
        _create_aggregation_state(self)


_building = ThreadFlag()  # the optimizer that holds several, and is being built


def _create_aggregation_state(optimizer):
    strategy = optimizer._distribution_strategy
    if len(optimizers_within(optimizer)) > 1:  # the optimizers that it holds reduce the gradients
        return
    if is_ours(strategy) and not our_replica_context():
        set_aggregation_state(optimizer, strategy)
        hint_at_delta_adasum(optimizer, strategy)


@hooks.replaces(MultiOptimizer, "build", feature=MULTI_OPTIMIZER)
def build_several(original, self, var_list):
    """Number the groups of variables over all optimizers, which are built one after the other."""
    if self.built:
        return original(self, var_list)
    with _building.within(self):
        original(self, var_list)
    innermost = [optimizers_within(each)[-1] for each in self.optimizers if each.built]
    divide_variables(innermost)
    for each in innermost:
        _create_aggregation_state(each)


@hooks.replaces(BaseOptimizer, "apply")
@hooks.replaces(MultiOptimizer, "apply", feature=MULTI_OPTIMIZER)
def begin_step(original, self, grads, trainable_variables=None):
    """Zero the gradients of a replica without rows, and let `on_nonfinite` skip a step.

    Every step of an optimizer begins with this method. Also, give all replicas the same float8
    scales.
    """
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)  # a generator can be read only once
    variables = trainable_variables or getattr(self, "_trainable_variables", [])
    refuse_update_outside(variables)

    def step(gradients):
        if not isinstance(self, MultiOptimizer):  # its optimizers do it
            gradients = _with_largest_scales(gradients, variables)
        original(self, gradients, trainable_variables)

    try:
        apply_unless_nonfinite(self, grads, trainable_variables, step, build)
    except RuntimeError as error:
        if our_replica_context() and "merge_call" in str(error):
            raise RuntimeError(WITHIN_A_BRANCH) from error
        raise


def _with_largest_scales(grads, variables):
    """Return gradients in which all replicas have the same float8 scales: the largest ones.

    A layer that is quantized to float8 passes its new scales and largest values as gradients. Keras
    assigns them on each replica, before Keras reduces the other gradients. The largest scales are
    the scales for the whole batch.
    """
    context, grads = our_replica_context(), list(grads)
    places = [
        place
        for place, (grad, variable) in enumerate(zip(grads, variables, strict=False))
        if grad is not None and getattr(variable, "overwrite_with_gradient", False)
    ]
    if places and context and context.num_replicas_in_sync > 1:
        own = [grads[place] for place in places]
        flat = joined(own, tf.float32)[tf.newaxis]
        largest = tf.reduce_max(context.all_gather(flat, axis=0), axis=0)
        for place, scale in zip(places, divided(largest, own), strict=True):
            grads[place] = scale
    return grads


def _update_unless(skips, optimizer, gradients, variables):
    """Update variables on the replicas that take the step. Called in each replica.

    Keras would update the variables on all local devices.

    Args:
        skips: boolean scalar tensor: whether this replica skips the step.
        optimizer: the optimizer, which is wrapped.
        gradients: list of this replica's gradients.
        variables: list of the gradients' variables.
    """

    def update(variable, gradient, rate, skips):
        def step():
            if optimizer.weight_decay is not None and optimizer._use_weight_decay(variable):
                decay = tf.cast(optimizer.weight_decay, variable.dtype)
                variable.assign_sub(variable * decay * tf.cast(rate, variable.dtype))
            optimizer.update_step(gradient, variable, rate)
            return tf.constant(0)

        tf.cond(skips, lambda: tf.constant(0), step)

    extended = tf.distribute.get_strategy().extended
    rate = tf.convert_to_tensor(optimizer.learning_rate)
    for gradient, variable in zip(gradients, map(tensorflow_variable, variables), strict=True):
        extended.update(variable, update, args=(gradient, rate, skips), group=False)


@hooks.replaces(TFOptimizer, "_backend_apply_gradients")
def backend_apply_gradients(original, self, grads, trainable_variables):
    """Combine the gradients of the replicas with the rule, in place of Keras's sum.

    Every optimizer, `train_step`, custom loop and gradient accumulation takes its steps in this
    method. `test_every_optimizer_reduction_is_marked` fails without this hook.

    Decide once for all replicas whether to accumulate, and whether to overwrite the weights. Keras
    decides with a `cond` in each replica, and no reduction is possible inside a `cond`. With a
    linear rule, Keras would clip before the reduction, other than on one device. Also, if a wrapper
    such as `AdaScale` runs the steps of this optimizer, the wrapper's update replaces the
    optimizer's update.
    """
    steps = self.gradient_accumulation_steps
    if steps and step_of_virtual_replicas():
        raise ValueError(ACCUMULATES)
    step = step_of_wrapper(self)
    if step:
        step.check_caller()
    elif our_replica_context():
        step = Step(self)
    else:
        return original(self, grads, trainable_variables)
    values = weighted_to_accumulate(self, [*grads, *step.measure(grads)])
    with contextlib.suppress(HandedOver):
        if not steps:
            step.update(values, trainable_variables)
        else:
            _accumulate(self, values, trainable_variables, step)
        if self.use_ema:
            step.average()


def _accumulate(optimizer, values, variables, step):
    """Update with the mean of the values, in every `gradient_accumulation_steps`-th call."""
    steps = optimizer.gradient_accumulation_steps
    accumulated = optimizer._accumulated_gradients
    accumulators = [accumulated[index_of(optimizer, variable)] for variable in variables]
    accumulators += accumulated[len(optimizer._trainable_variables) :]  # of the measured scalars

    def update(*values):
        pairs = zip(values, accumulators, strict=True)
        step.update([(value + sum_so_far) / steps for value, sum_so_far in pairs], variables)
        optimizer._backend_reset_gradient_accumulators()

    def accumulate(*values):
        optimizer._backend_increment_gradient_accumulators(values, accumulators)

    # With accumulation, `iterations` counts updates, and `_iterations` counts calls.
    is_update = (optimizer._iterations + 1) % steps == 0
    cond(tf.distribute.get_replica_context(), is_update, update, accumulate, values)


@functools.cache
def _without_reduction(kind):
    """Return a subclass of a class of optimizers, which gets gradients that are combined already.

    `_backend_update_step` reduces the gradients and updates the weights, and some optimizers
    override it. An object of this class with the attributes of an optimizer only updates.
    """

    class Updating(kind):
        def _all_reduce_sum_gradients(self, grads_and_vars):
            return list(grads_and_vars)

    return Updating


# The optimizers with own variables.
built_optimizers = weakref.WeakSet()


class Step(BaseStep):
    """Takes the steps of a Keras 3 optimizer."""

    def update(self, values, variables):
        """Clip gradients, reduce the gradients, decay weights and update the variables."""
        optimizer, skips = self.optimizer, self.skips()
        is_first = combines_before_clipping(optimizer)
        if is_first:
            values = combine(optimizer, values, variables)
        values = optimizer._clip_gradients(values)
        if not is_first and combines(optimizer):
            values = combine(optimizer, values, variables)
        updating = object.__new__(_without_reduction(type(optimizer)))
        object.__setattr__(updating, "__dict__", vars(optimizer))
        if skips is not None:
            # What belongs to no weight changes as `iterations` does, such as Nadam's product.
            updating._backend_update_step([], [], optimizer.learning_rate)
            _update_unless(skips, optimizer, values, variables)
            return
        optimizer._apply_weight_decay(variables)
        updating._backend_update_step(values, variables, optimizer.learning_rate)

    def average(self):
        """Update the moving averages of the weights, and apply `ema_overwrite_frequency`."""
        self.update_averages(self.optimizer.iterations)

    def update_averages(self, count):
        """Update the averages of the weights, as Keras does, but with another count of updates."""
        optimizer = self.optimizer
        averages = getattr(optimizer, MOVING_AVERAGES)
        pairs = zip(optimizer._trainable_variables, averages, strict=True)
        pairs = [(variable, average) for variable, average in pairs if average is not None]
        for variable, average in pairs:
            momentum = tf.cast(tf.where(count == 0, 0.0, optimizer.ema_momentum), average.dtype)
            average.assign(momentum * average + (1 - momentum) * variable)

        def overwrite():
            for variable, average in pairs:
                variable.assign(average)

        frequency = optimizer.ema_overwrite_frequency
        if frequency:
            context = tf.distribute.get_replica_context()
            cond(context, (count + 1) % frequency == 0, overwrite, lambda: None)

    def add_accumulator(self):
        """Add an accumulator for a scalar of `measure`, if the optimizer accumulates gradients."""
        optimizer = self.optimizer
        if optimizer.gradient_accumulation_steps:
            accumulator = optimizer.add_variable((), name="accumulator", dtype="float32")
            optimizer._accumulated_gradients.append(accumulator)

    def assigned_in_forward_pass(self):
        """Return floating-point weights that this replica has assigned since the last call.

        Variables of optimizers and metrics, and trainable weights, are left out.
        """
        of_optimizers = {id(v) for each in built_optimizers for v in each.variables}
        return [
            variable
            for variable in take_assigned()
            if not variable.trainable
            and id(variable) not in of_optimizers
            and tf.as_dtype(variable.dtype).is_floating
            and variable.aggregation == "none"
        ]

    def add_slots(self, wrapper, count):
        """Add variables for what differs between the virtual replicas of a device."""
        averages = {id(each) for each in getattr(self.optimizer, MOVING_AVERAGES, ())}
        pairs = []
        for slot in self.optimizer.variables:
            if slot.aggregation == "none" and id(slot) not in averages:

                def initial(shape, dtype, slot=slot):
                    return tf.broadcast_to(tf.cast(slot, dtype), shape)

                options = {"dtype": slot.dtype, "name": f"virtual_{slot.name}"}
                slot.of_virtual_replicas = wrapper.add_variable(
                    (count, *slot.shape), initial, **options
                )
                pairs.append((slot, slot.of_virtual_replicas))
        return pairs


def combines(optimizer):
    """Return whether an optimizer combines gradients itself. Called in a replica."""
    context = our_replica_context()
    is_combined = not context or context.strategy.are_gradients_combined
    return not is_combined and not step_of_wrapper(optimizer)


def combines_before_clipping(optimizer):
    """Return whether the combined gradient is clipped, as on one device. Called in a replica."""
    clips = optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm
    return bool(clips and combines(optimizer)) and not (
        tf.distribute.get_strategy().aggregation.needs_gram
    )


def apply(optimizer, gradients, variables):
    """Let an optimizer take a step with this replica's gradients."""
    optimizer.apply(gradients, variables)


def bring_inside(strategy, optimizer):
    """Create the variables of an optimizer again in the scope, unless the optimizer is built."""
    parts = optimizers_within(optimizer)
    if any(each.built for each in parts):
        return
    for each in parts:
        each._distribution_strategy = strategy
    with strategy.scope():
        for variable in outside(strategy, all_variables(optimizer)):
            variable._initialize(variable.numpy())


def all_variables(optimizer):
    """Return all variables of an optimizer and of the optimizers that it holds, as a list."""
    found = {id(v): v for each in optimizers_within(optimizer) for v in each.variables}
    return list(found.values())
