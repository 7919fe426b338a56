"""Reduces the gradients of optimizers (Keras 2 and 3)."""

import contextlib
import math
import weakref

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.base_strategy import GradientAggregatingStrategy
from tf_adasum.compat.keras.generation import index_of, variables_of
from tf_adasum.compat.keras.optimizer_steps import is_wrapped
from tf_adasum.errors import hint


def is_ours(strategy):
    """Return whether a strategy is a strategy of this package."""
    return isinstance(strategy, GradientAggregatingStrategy)


def our_replica_context():
    """Return the current replica context if it belongs to one of our strategies, or else None."""
    context = tf.distribute.get_replica_context()
    return context if context and is_ours(context.strategy) else None


def step_of_virtual_replicas():
    """Return the step whose micro-batches this replica runs, or None."""
    context = our_replica_context()
    return context and context.strategy._virtual_replicas.step


def replicas_of(model):
    """Return how many replicas a model is trained with: virtual replicas of ours, or devices."""
    strategy = model.distribute_strategy
    return strategy.num_virtual_replicas if is_ours(strategy) else strategy.num_replicas_in_sync


def path_of(variable):
    """Return the path of a Keras variable, or the name of a TensorFlow variable without ":0"."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def tensorflow_variable(variable):
    """Return the `tf.Variable` of a Keras 3 variable, or a TensorFlow variable unchanged."""
    value = variable.value
    return variable if callable(value) else value


class HandedOver(Exception):
    """Ends a step of an optimizer in a micro-batch; the update follows in the last one."""


def apply_unless_nonfinite(optimizer, gradients, variables, step, build=None):
    """Take a step with this replica's gradients, if the gradients of all replicas are finite.

    The gradients of a replica without rows are zeroed first, because they are often NaN.

    Args:
        optimizer: the optimizer.
        gradients: list of this replica's gradients, with None for each missing gradient.
        variables: list of the gradients' variables. None for the optimizer's variables.
        step: function that takes a step with the list of gradients. Each replica calls it
            either immediately or inside a branch of `tf.cond`.
        build: function that creates the variables of an optimizer, which a branch cannot do, if
            they do not exist yet. Defaults to None: they exist.
    """
    context = our_replica_context()
    if not context or is_wrapped(optimizer):
        return step(gradients)
    virtual = context.strategy._virtual_replicas.step
    context.strategy._virtual_replicas.check(virtual is not None)
    with virtual.update() if virtual else contextlib.nullcontext():
        return _apply_unless_nonfinite(context, optimizer, gradients, variables, step, build)


def _apply_unless_nonfinite(context, optimizer, gradients, variables, step, build):
    if not context.strategy.are_gradients_combined:
        gradients = context.strategy._empty_replicas.zero_where_empty(gradients)
    nonfinite = context.strategy._nonfinite
    present = [gradient for gradient in gradients if gradient is not None]
    if nonfinite.is_disabled or not present:
        return step(gradients)

    if variables is not None and build:
        build(optimizer, variables)
    every = variables_of(optimizer) if variables is None else list(variables)
    pairs = zip(gradients, every, strict=True)
    paths = [path_of(variable) for gradient, variable in pairs if gradient is not None]
    are_present = [gradient is not None for gradient in gradients]

    def take(_, *present):
        with nonfinite.already_checked():
            step(at_places(are_present, present))

    def skip_or_raise(found, *_):
        nonfinite.skip_or_raise(found, paths)

    virtual = context.strategy._virtual_replicas.step
    if virtual and virtual.hands_over:
        virtual.note("not finite", nonfinite.first(present))
        with nonfinite.already_checked():
            return step(gradients)
    found = nonfinite.find(present)
    is_finite = tf.reduce_all(tf.equal(found, 0))
    return cond(context, is_finite, take, skip_or_raise, (found, *present))


def combine(optimizer, gradients, variables, scalars=()):
    """Combine the replicas' gradients of some variables with the strategy's rule.

    Called in a replica. With `gradient_accumulation_steps`, the gradients are already weighted
    by the rows of the replicas.

    Args:
        optimizer: the optimizer that was built for these variables.
        gradients: list of this replica's gradients, without None.
        variables: list of the gradients' Keras or TensorFlow variables.
        scalars: list of scalars that are combined as gradients of other variables. The results
            follow the combined gradients.

    Raises:
        HandedOver: if another micro-batch of this device follows.
    """
    context = tf.distribute.get_replica_context()
    gradients = [of_known_shape(*pair) for pair in zip(gradients, variables, strict=True)]
    indices = [index_of(optimizer, variable) for variable in variables]
    state = _aggregation_state_of(optimizer, context)
    values, marker = [*gradients, *scalars], tensorflow_compat.GradientOptions()
    virtual = context.strategy._virtual_replicas.step
    if virtual and virtual.hands_over:
        measured = len(gradients) if state.measures_orthogonality else 0
        virtual.hand_over(optimizer, values, state.groups_of(indices), measured)
        raise HandedOver
    if virtual:
        parts = virtual.combined(optimizer, values)
        values, marker.parts = [each for part in parts for each in part], len(parts)
    _check_same_gradients(context, gradients, variables, state.groups_of(indices))
    is_weighted = accumulation_steps(optimizer) > 1
    marker = marker.for_variables(state, indices, is_weighted)
    count = len(gradients) + len(scalars)
    combined = context.all_reduce("SUM", values, options=marker)[:count]
    if virtual and state.measures_orthogonality:
        state.keep_measures(virtual.measures(gradients, combined[: len(gradients)]), indices)
    return combined


def _aggregation_state_of(optimizer, replica_context):
    """Return the optimizer's `AggregationState`. Create it if it does not exist yet."""

    def across_replicas(strategy):
        with tf.init_scope():
            set_aggregation_state(optimizer, strategy)

    if getattr(optimizer, "aggregation_state", None) is None:
        replica_context.merge_call(across_replicas)
    return optimizer.aggregation_state


def divide_variables(optimizers):
    """Note that one optimizer holds several built optimizers, which have own variables."""
    paths = [[path_of(v) for v in variables_of(each)] for each in optimizers]
    for number, own in enumerate(optimizers):
        others = paths[:number] + paths[number + 1 :]
        _paths_of_others[own] = [path for each in others for path in each]


def set_aggregation_state(optimizer, strategy):
    """Create and store the `AggregationState` of a built optimizer."""
    paths = [path_of(variable) for variable in variables_of(optimizer)]
    others = _paths_of_others.get(optimizer, ())
    optimizer.aggregation_state = strategy._aggregation_state(paths, others)
    rule_state = optimizer.aggregation_state.rule_state
    if rule_state:
        optimizer.rule_state = rule_state  # Keras saves this attribute with the optimizer


def at_places(are_present, present):
    """Return a list with the values of `present` where a flag is true, and None elsewhere."""
    own = iter(present)
    return [next(own) if is_present else None for is_present in are_present]


def of_known_shape(gradient, variable):
    """Return a gradient with the static shape of its variable.

    The static shape is lost inside a `tf.cond`, for example if gradients are accumulated. An
    all-reduce also loses the static shape of the rows of a sparse gradient.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.ensure_shape(gradient, variable.shape)
    values = tf.ensure_shape(gradient.values, [None, *variable.shape[1:]])
    return tf.IndexedSlices(
        values, gradient.indices, tf.constant(variable.shape.as_list(), tf.int64)
    )


def _check_same_gradients(replica_context, gradients, variables, groups):
    # Names are only for the message, because workers may have numbered their layers differently.
    names = ", ".join(
        f"{variable.name} in group {group}" if len(set(groups)) < len(groups) else variable.name
        for variable, group in zip(variables, groups, strict=True)
    )
    shapes = ", ".join(
        f"{'sparse ' if isinstance(gradient, tf.IndexedSlices) else ''}"
        f"{tf.as_dtype(variable.dtype).name}{tuple(variable.shape)} in {group}"
        for gradient, variable, group in zip(gradients, variables, groups, strict=True)
    )

    def across_replicas(strategy, names, shapes):
        local = strategy.experimental_local_results
        strategy._check_same_gradients(local(names), local(shapes))

    replica_context.merge_call(across_replicas, args=(names, shapes))


def aggregation_states_of(optimizer):
    """Return a list of the `AggregationState`s of an optimizer and the optimizers in it."""
    states = (getattr(each, "aggregation_state", None) for each in optimizers_within(optimizer))
    return [state for state in states if state is not None]


def optimizers_within(optimizer):
    """Return a list of an optimizer and all optimizers that it holds, the innermost last.

    For example, a `LossScaleOptimizer` holds one optimizer, and a `MultiOptimizer` holds several.

    Args:
        optimizer: the optimizer of a model. None gives an empty list.
    """
    found, ahead = {}, [optimizer]
    while ahead:
        one = ahead.pop(0)
        if one is not None and id(one) not in found:
            found[id(one)] = one
            ahead += _optimizers_in(list(vars(one).values()))
    return list(found.values())


# For each optimizer in an optimizer that holds several: the paths of the others' variables.
_paths_of_others = weakref.WeakKeyDictionary()


def is_one_of_several(optimizer):
    """Return whether an optimizer is in an optimizer that holds several."""
    return bool(_paths_of_others.get(optimizers_within(optimizer)[-1]))


def optimizers_of(model):
    """Return a list of a model's optimizers, from `compile` and from attributes (as in a GAN)."""
    own = getattr(model, "optimizer", None)
    others = _optimizers_in(list(vars(model).values()))
    found = {id(each): each for each in (own, *others) if each is not None}
    return list(found.values())


def _optimizers_in(value):
    """Yield the optimizers in a value, also in lists, tuples and dictionaries."""
    if hasattr(value, "apply_gradients"):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _optimizers_in(each)


def learning_rate_of(model):
    """Return the current learning rate of a model's optimizer; 0.0 if it is not a number."""
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", 0.0)
    return 0.0 if callable(rate) else float(tf.convert_to_tensor(rate))


def floating(learning_rate):
    """Return a learning rate as a floating-point tensor, because a schedule may return an int."""
    learning_rate = tf.convert_to_tensor(learning_rate)
    if learning_rate.dtype.is_floating:
        return learning_rate
    return tf.cast(learning_rate, keras.backend.floatx())


def accumulation_steps(optimizer):
    """Return `gradient_accumulation_steps` of an optimizer, or 1 if it does not accumulate."""
    return getattr(optimizer, "gradient_accumulation_steps", None) or 1


def weighted_to_accumulate(optimizer, values):
    """Return gradients, which the rule mean weights by rows here if the optimizer accumulates.

    Without accumulation, the reduction weights them.
    """
    context = our_replica_context()
    is_needed = context and context.strategy.aggregation.is_mean
    if not is_needed or accumulation_steps(optimizer) == 1:
        return list(values)
    weight = context.strategy._empty_replicas.weight()
    if weight is None:
        return list(values)
    return [value * tf.cast(weight, value.dtype) for value in values]


def hint_at_delta_adasum(optimizer, strategy):
    """Say once that Adasum combines the steps of adaptive optimizers better than gradients."""
    is_adaptive = hasattr(optimizer, "beta_2") or hasattr(optimizer, "rho")
    is_several = strategy.num_virtual_replicas > 1 and strategy._workers.rank == 0
    is_adasum = strategy.aggregation.is_tree_of_pairs
    if is_adaptive and is_several and is_adasum and not is_wrapped(optimizer):
        hint(
            f"{type(optimizer).__name__} under Adasum usually trains better in "
            "optimizers.DeltaAdasum, which combines the steps of the replicas instead of their "
            "gradients."
        )


def check_same_settings(strategy, settings):
    """Compare an optimizer's settings on all workers, if the strategy is one of ours."""
    what = "All workers need an optimizer with the same settings."
    if our_replica_context():
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: strategy._workers.check_same(what, settings, code="TFA-310")
        )
    elif is_ours(strategy):
        strategy._workers.check_same(what, settings, code="TFA-310")


def on_any_replica(flag):
    """Return whether a boolean scalar is true on any replica. Called in each replica."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce("SUM", tf.cast(flag, tf.float32)) > 0


def cond(context, predicate, then, otherwise, arguments=()):
    """Call one of two functions in each replica. Unlike in a `tf.cond`, they may reduce values.

    Args:
        context: the replica context.
        predicate: boolean tensor, the same on all replicas.
        then: function to call with this replica's `arguments` if the predicate is true.
        otherwise: function to call with the same arguments if the predicate is false.
        arguments: tensors of this replica.
    """

    def across_replicas(strategy, predicate, *arguments):
        def in_each_replica(function):
            strategy.extended.call_for_each_replica(
                lambda *own: (function(*own), tf.constant(0))[1], args=arguments
            )
            return tf.constant(0)

        tf.cond(
            strategy.experimental_local_results(predicate)[0],
            lambda: in_each_replica(then),
            lambda: in_each_replica(otherwise),
        )

    context.merge_call(across_replicas, args=(predicate, *arguments))


def joined(values, dtype):
    """Return a vector with the elements of all values, to exchange them in one collective."""
    return tf.concat([tf.reshape(tf.cast(value, dtype), [-1]) for value in values], axis=0)


def divided(vector, values):
    """Divide a vector into a list of tensors with the shapes and dtypes of values."""
    parts = tf.split(vector, [math.prod(value.shape) for value in values])
    pairs = zip(parts, values, strict=True)
    return [tf.reshape(tf.cast(part, value.dtype), value.shape) for part, value in pairs]


def average(variables):
    """Average the replicas' values of floating-point variables. Called in each replica.

    The average is computed in float64, so that equal values keep their bits; float64 values may
    change by one rounding. If a replica has no rows in a step, the mean of its batch is NaN. So
    values that are not finite are left out of the average. If a value is finite on no replica, it
    is not changed.
    """
    own = joined(variables, tf.float64)
    is_finite = tf.math.is_finite(own)
    counted = tf.stack([tf.where(is_finite, own, 0), tf.cast(is_finite, tf.float64)])
    total, count = tf.unstack(tf.distribute.get_replica_context().all_reduce("SUM", counted))
    means = tf.where(count > 0, total / count, own)
    for variable, mean in zip(variables, divided(means, variables), strict=True):
        variable.assign(mean)


def assign(variables, values):
    """Assign this replica's own values to variables. Called in each replica.

    Args:
        variables: Keras or TensorFlow variables.
        values: a tensor for each variable.
    """
    update = tf.distribute.get_strategy().extended.update
    for variable, value in zip(map(tensorflow_variable, variables), values, strict=True):
        update(variable, lambda own, new: own.assign(new), args=(value,), group=False)
