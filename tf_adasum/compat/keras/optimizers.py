"""Reduces the gradients of optimizers (Keras 2 and 3)."""

import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.base_strategy import GradientAggregatingStrategy
from tf_adasum.compat.keras.optimizer_steps import is_wrapped


def is_ours(strategy):
    """Return whether a strategy is a strategy of this package."""
    return isinstance(strategy, GradientAggregatingStrategy)


def our_replica_context():
    """Return the current replica context if it belongs to one of our strategies, or else None."""
    context = tf.distribute.get_replica_context()
    return context if context and is_ours(context.strategy) else None


def path_of(variable):
    """Return the path of a Keras variable, or the name of a TensorFlow variable without ":0"."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def tensorflow_variable(variable):
    """Return the `tf.Variable` of a Keras 3 variable, or a TensorFlow variable unchanged."""
    value = variable.value
    return variable if callable(value) else value


def marker_of(strategy):
    """Return the strategy's `gradient_reduction`, or None if Keras reduces the gradients."""
    return strategy.gradient_reduction if is_ours(strategy) else None


def keras_reduces_gradients(strategy):
    """Return whether Keras reduces the gradients under a strategy."""
    return marker_of(strategy) is None and _marker_of_sum(strategy) is None


def _marker_of_sum(strategy):
    """Return the marker of a sum of gradients; None if TensorFlow computes the sum."""
    if not is_ours(strategy):
        return None
    return tensorflow_compat.cross_device_ops(strategy.extended).gradient_sum


def summed(context, gradients):
    """Return the sums of gradients over the replicas. Dense gradients use the strategy's transport.

    TensorFlow sums sparse gradients. If several replicas have the same row, the result contains the
    row several times. These rows are not added up, because some optimizers, such as Adam, would
    then take a different step.
    """
    are_dense = [not isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    dense = [gradient for gradient, is_dense in zip(gradients, are_dense, strict=True) if is_dense]
    sparse = [own for own, is_dense in zip(gradients, are_dense, strict=True) if not is_dense]
    sums = iter(
        context.all_reduce("SUM", dense, options=_marker_of_sum(context.strategy)) if dense else ()
    )
    of_sparse = iter(context.all_reduce("SUM", sparse) if sparse else ())
    return [next(sums if is_dense else of_sparse) for is_dense in are_dense]


class Optimizers:
    """Reduces the gradients of optimizers: the base class for Keras 2 and for Keras 3."""

    def variables_of(self, optimizer):
        """Return the list of variables that a built optimizer was built for."""
        raise NotImplementedError

    def index_of(self, optimizer, variable):
        """Return the index of a Keras or TensorFlow variable in `variables_of`."""
        raise NotImplementedError

    def build(self, optimizer, variables):
        """Create an optimizer's own variables if they do not exist yet. Called in a replica."""
        raise NotImplementedError

    def apply_unless_nonfinite(self, optimizer, gradients, variables, step):
        """Take a step with this replica's gradients, if the gradients of all replicas are finite.

        Args:
            optimizer: the optimizer.
            gradients: list of this replica's gradients, with None for each missing gradient.
            variables: list of the gradients' variables. None for the optimizer's variables.
            step: function that takes a step with the list of gradients. Each replica calls it
                either immediately or inside a branch of `tf.cond`.
        """
        context = our_replica_context()
        if not context or is_wrapped(optimizer):
            return step(gradients)
        gradients = context.strategy.empty_replicas.zero_where_empty(gradients)
        nonfinite = context.strategy.nonfinite
        present = [gradient for gradient in gradients if gradient is not None]
        if nonfinite.is_disabled or not present:
            return step(gradients)

        if variables is not None:  # a branch cannot create variables
            self.build(optimizer, variables)
        every = self.variables_of(optimizer) if variables is None else list(variables)
        pairs = zip(gradients, every, strict=True)
        paths = [path_of(variable) for gradient, variable in pairs if gradient is not None]
        are_present = [gradient is not None for gradient in gradients]

        def take(found, *present):
            del found
            with nonfinite.already_checked():
                step(_at_places(are_present, present))

        def skip_or_raise(found, *present):
            del present
            nonfinite.skip_or_raise(found, paths)

        found = nonfinite.find(present)
        is_finite = tf.reduce_all(tf.equal(found, 0))
        return cond(context, is_finite, take, skip_or_raise, (found, *present))

    def combine(self, optimizer, gradients, variables):
        """Combine the replicas' gradients of some variables with the strategy's rule.

        Called in a replica, unless `keras_reduces_gradients` is True. With the rule mean, a sum is
        computed, because the loss is already divided by the number of replicas.

        Args:
            optimizer: the optimizer that was built for these variables.
            gradients: list of this replica's gradients, without None.
            variables: list of the gradients' Keras or TensorFlow variables.
        """
        context = tf.distribute.get_replica_context()
        gradients = [of_known_shape(*pair) for pair in zip(gradients, variables, strict=True)]
        if marker_of(context.strategy) is None:
            _check_same_gradients(context, gradients, variables, [0] * len(variables))
            return summed(context, gradients)
        indices = [self.index_of(optimizer, variable) for variable in variables]
        state = self._aggregation_state_of(optimizer, context)
        _check_same_gradients(context, gradients, variables, state.groups_of(indices))
        marker = marker_of(context.strategy).for_variables(state, indices)
        return context.all_reduce("SUM", gradients, options=marker)

    def combine_present(self, optimizer, grads_and_vars, present):
        """Combine the gradients that are not None, and keep each None.

        Args:
            optimizer: the optimizer that was built for these variables.
            grads_and_vars: list of pairs (gradient or None, variable).
            present: list of the pairs that have a gradient.

        Returns:
            The list of pairs, with the combined gradients.
        """
        combined = self.combine(optimizer, *zip(*present, strict=True)) if present else ()
        are_present = [gradient is not None for gradient, _ in grads_and_vars]
        variables = [variable for _, variable in grads_and_vars]
        return list(zip(_at_places(are_present, combined), variables, strict=True))

    def _aggregation_state_of(self, optimizer, replica_context):
        """Return the optimizer's `AggregationState`. Create it if it does not exist yet."""

        def across_replicas(strategy):
            if aggregation_state_of(optimizer) is None:
                with tf.init_scope():
                    self.set_aggregation_state(optimizer, strategy)

        replica_context.merge_call(across_replicas)
        return aggregation_state_of(optimizer)

    def set_aggregation_state(self, optimizer, strategy):
        """Create and store the `AggregationState` of a built optimizer."""
        paths = [path_of(variable) for variable in self.variables_of(optimizer)]
        optimizer.gradient_reductions = strategy.aggregation_state(paths)
        rule_state = optimizer.gradient_reductions.rule_state
        if rule_state:
            optimizer.rule_state = rule_state  # Keras saves this attribute with the optimizer


def _at_places(are_present, present):
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
        strategy.check_same_gradients(local(names), local(shapes))

    replica_context.merge_call(across_replicas, args=(names, shapes))


def aggregation_state_of(optimizer):
    """Return the `AggregationState` of an optimizer; None if it has none."""
    found = optimizers_within(optimizer)
    return getattr(found[-1], "gradient_reductions", None) if found else None


def optimizers_within(optimizer):
    """Return a list of an optimizer and its inner optimizers, the innermost last.

    For example, a `LossScaleOptimizer` has an inner optimizer.

    Args:
        optimizer: the optimizer of a model. None gives an empty list.
    """
    found = []
    while optimizer is not None:
        found.append(optimizer)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found


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


def accumulation_steps(optimizer):
    """Return `gradient_accumulation_steps` of an optimizer, or 1 if it does not accumulate."""
    return getattr(optimizer, "gradient_accumulation_steps", None) or 1


def check_same_settings(strategy, settings):
    """Compare an optimizer's settings on all workers, if the strategy is one of ours."""
    what = "All workers need an optimizer with the same settings."
    if our_replica_context():
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: strategy.workers.check_same(what, settings, code="TFA-310")
        )
    elif is_ours(strategy):
        strategy.workers.check_same(what, settings, code="TFA-310")


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


def assign(variables, values):
    """Assign this replica's own values to variables. Called in each replica.

    Args:
        variables: Keras or TensorFlow variables.
        values: a tensor for each variable.
    """

    def across_replicas(strategy, values):
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                tensorflow_variable(variable),
                lambda own, value: own.assign(value),
                args=(value,),
                group=False,
            )

    tf.distribute.get_replica_context().merge_call(across_replicas, args=(values,))
