"""Optimizers, for both generations: how they reduce gradients, and the steps of wrappers."""

import contextlib

import tensorflow as tf

from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.base_strategy import GradientAggregatingStrategy


def is_ours(strategy):
    """Whether a strategy is one of this package's."""
    return isinstance(strategy, GradientAggregatingStrategy)


def our_replica_context():
    """Return the current replica context, if it belongs to one of our strategies."""
    context = tf.distribute.get_replica_context()
    return context if context and is_ours(context.strategy) else None


def path_of(variable):
    """Return a Keras variable's path; the name of one of TensorFlow's, without its ":0"."""
    return getattr(variable, "path", None) or variable.name.partition(":")[0]


def tensorflow_variable(variable):
    """Return the `tf.Variable` of a Keras 3 variable; one of TensorFlow's as it is."""
    value = variable.value
    return variable if callable(value) else value


def marker_of(strategy):
    """Return the strategy's `gradient_reduction`; None if Keras reduces gradients itself."""
    return strategy.gradient_reduction if is_ours(strategy) else None


def goes_own_way(strategy):
    """Whether gradients are reduced as Keras does it."""
    return marker_of(strategy) is None and _marker_of_sum(strategy) is None


def _marker_of_sum(strategy):
    """Return the marker of gradients that are summed; None if TensorFlow sums them."""
    if not is_ours(strategy):
        return None
    return tensorflow_seam.cross_device_ops(strategy.extended).gradient_sum


def summed(context, gradients):
    """Return the sums over the replicas: `ReplicaContext.all_reduce` over the gradients' transport.

    TensorFlow sums sparse gradients, and keeps the same row of several replicas as several rows.
    Some optimizers, such as Adam, take another step if these are one row.
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
    """How the optimizers of a generation of Keras reduce their gradients."""

    def variables_of(self, optimizer):
        """Return the list of variables that a built optimizer was built for."""
        raise NotImplementedError

    def index_of(self, optimizer, variable):
        """Return the place of a variable, Keras's or TensorFlow's, in `variables_of`, from 0."""
        raise NotImplementedError

    def build(self, optimizer, variables):
        """Make an optimizer's own variables, if it has none yet; called in a replica."""
        raise NotImplementedError

    def begin_together(self, optimizer, gradients, variables, step):
        """Take a step with what a replica has of gradients, if all replicas have finite ones.

        Args:
            optimizer: the optimizer.
            gradients: this replica's, or None for one that there is not.
            variables: as many variables; None for the optimizer's variables.
            step: function of the list of gradients; called now, or as a branch in each replica.
        """
        context = our_replica_context()
        if not context or is_wrapped(optimizer):
            return step(gradients)
        gradients = context.strategy.empty_replicas.zero_where_empty(gradients)
        guard = context.strategy.nonfinite
        present = [gradient for gradient in gradients if gradient is not None]
        if guard.leaves_be or not present:
            return step(gradients)

        if variables is not None:  # no variable can be made in a branch
            self.build(optimizer, variables)
        every = self.variables_of(optimizer) if variables is None else list(variables)
        pairs = zip(gradients, every, strict=True)
        paths = [path_of(variable) for gradient, variable in pairs if gradient is not None]
        are_present = [gradient is not None for gradient in gradients]

        def take(found, *present):
            del found
            with guard.passed():
                step(_at_places(are_present, present))

        def leave_out(found, *present):
            del present
            guard.leave_out(found, paths)

        found = guard.find(present)
        is_finite = tf.reduce_all(tf.equal(found, 0))
        return cond(context, is_finite, take, leave_out, (found, *present))

    def combine(self, optimizer, gradients, variables):
        """Combine what the replicas have for some variables by the strategy's rule.

        Under the mean that is the sum: its divisor is in the loss.

        Args:
            optimizer: the one that was built for these variables.
            gradients: this replica's, none of them None. Called in a replica of a strategy under
                which Keras does not reduce gradients.
            variables: as many Keras or TensorFlow variables.
        """
        context = tf.distribute.get_replica_context()
        gradients = [of_known_shape(*pair) for pair in zip(gradients, variables, strict=True)]
        if marker_of(context.strategy) is None:
            _check_same_gradients(context, gradients, variables, [0] * len(variables))
            return summed(context, gradients)
        indices = [self.index_of(optimizer, variable) for variable in variables]
        state = self._aggregation_state_of(optimizer, context)
        _check_same_gradients(context, gradients, variables, state.groups_of(indices))
        marker = marker_of(context.strategy).of(state, indices)
        return context.all_reduce("SUM", gradients, options=marker)

    def combine_present(self, optimizer, grads_and_vars, present):
        """Combine the gradients of an optimizer that exist; `None` stays.

        Args:
            optimizer: the one that was built for these variables.
            grads_and_vars: list of pairs of a gradient or None, and its variable.
            present: those pairs that have a gradient.

        Returns:
            The list of pairs, with the combined gradients.
        """
        combined = self.combine(optimizer, *zip(*present, strict=True)) if present else ()
        are_present = [gradient is not None for gradient, _ in grads_and_vars]
        variables = [variable for _, variable in grads_and_vars]
        return list(zip(_at_places(are_present, combined), variables, strict=True))

    def _aggregation_state_of(self, optimizer, replica_context):
        """Return the optimizer's `AggregationState`, made now if it was built in a replica."""

        def across_replicas(strategy):
            if aggregation_state_of(optimizer) is None:
                with tf.init_scope():
                    self.set_aggregation_state(optimizer, strategy)

        replica_context.merge_call(across_replicas)
        return aggregation_state_of(optimizer)

    def set_aggregation_state(self, optimizer, strategy):
        """Give a built optimizer its `AggregationState`."""
        paths = [path_of(variable) for variable in self.variables_of(optimizer)]
        optimizer.gradient_reductions = strategy.aggregation_state(paths)
        rule_state = optimizer.gradient_reductions.rule_state
        if rule_state:
            optimizer.rule_state = rule_state  # what Keras finds here it saves with the optimizer


def _at_places(are_present, present):
    """Return the list in which what is present stands at its places, and None elsewhere."""
    own = iter(present)
    return [next(own) if is_present else None for is_present in are_present]


def of_known_shape(gradient, variable):
    """Return a gradient with its variable's shape.

    Inside a cond, as of accumulation, it is lost; the rows of a sparse one also in an all-reduce.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.ensure_shape(gradient, variable.shape)
    values = tf.ensure_shape(gradient.values, [None, *variable.shape[1:]])
    return tf.IndexedSlices(
        values, gradient.indices, tf.constant(variable.shape.as_list(), tf.int64)
    )


def _check_same_gradients(replica_context, gradients, variables, groups):
    # Names are for the message only: workers may have numbered their layers differently.
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
    """Return an optimizer and those in it, as `LossScaleOptimizer` has one, the innermost last.

    Args:
        optimizer: a model's; None gives an empty list.
    """
    found = []
    while optimizer is not None:
        found.append(optimizer)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found


def optimizers_of(model):
    """Return a list of a model's optimizers: from `compile`, and its attributes (as in a GAN)."""
    own = getattr(model, "optimizer", None)
    others = _optimizers_in(list(vars(model).values()))
    found = {id(each): each for each in (own, *others) if each is not None}
    return list(found.values())


def _optimizers_in(value):
    """Yield optimizers; also those in lists, tuples and dictionaries."""
    if hasattr(value, "apply_gradients"):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _optimizers_in(each)


def learning_rate_of(model):
    """Return the learning rate that a model's optimizer has now; 0.0 if it has no such number."""
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", 0.0)
    return 0.0 if callable(rate) else float(tf.convert_to_tensor(rate))


def accumulation_steps(optimizer):
    """Return how many gradients go into an update: `gradient_accumulation_steps`, or else 1."""
    return getattr(optimizer, "gradient_accumulation_steps", None) or 1


def check_same_settings(strategy, settings):
    """Let the workers compare an optimizer's settings, if the strategy is one of ours."""
    what = "All workers need an optimizer with the same settings."
    if our_replica_context():
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: strategy.workers.check_same(what, settings, code="TFA-310")
        )
    elif is_ours(strategy):
        strategy.workers.check_same(what, settings, code="TFA-310")


class BaseStep:
    """What an optimizer does with the gradients of one update, as a wrapper defines it.

    `measure`, `update`, `rests` and `average` are called in each replica.

    Args:
        optimizer: the optimizer.

    Attributes:
        replicas: N, how many replicas take the step together.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self._calls_of_wrapper = 0
        self.enter(tf.distribute.get_strategy())

    def enter(self, strategy):
        """Take a strategy for the one whose replicas take the step."""
        self.replicas = strategy.num_replicas_in_sync

    def build(self, wrapper, variables):
        """Make the variables of the step; called once the optimizer is built.

        Args:
            wrapper: the `WrapperBase` that they are to be saved with, whose `add_variable` and
                `add_optimizer_variables` make them.
            variables: those that the optimizer was built for.
        """
        del wrapper, variables  # a body is what AutoGraph needs

    @contextlib.contextmanager
    def called_by_wrapper(self):
        """Return a context manager in which the optimizer takes steps; elsewhere it refuses."""
        self._calls_of_wrapper += 1
        try:
            yield
        finally:
            self._calls_of_wrapper -= 1

    def check_caller(self):
        """Raise a ValueError if it was not the wrapper that called the optimizer."""
        if not self._calls_of_wrapper:
            raise ValueError(
                f"This {type(self.optimizer).__name__} is wrapped by another optimizer, which "
                "takes its steps. Compile the model with the wrapper, or create a new optimizer."
            )

    def measure(self, gradients):
        """Return scalars that are accumulated with the gradients, and come to `update` at the end.

        Args:
            gradients: of this call, neither clipped nor reduced.
        """
        del gradients
        return []

    def update(self, values, variables):
        """Clip, decay, reduce and update.

        Args:
            values: the gradients, or their means over `gradient_accumulation_steps` calls, and the
                scalars of `measure`.
            variables: as many variables as gradients.
        """
        raise NotImplementedError

    def rests(self):
        """Whether this replica takes no step, nor decays weights: boolean scalar; None for never.

        Only for what reduces nothing in its updates.
        """
        return None

    def average(self):
        """Move the moving averages of the weights, and from time to time take them over."""
        raise NotImplementedError


def take_over(step):
    """Let a step do the updates of its optimizer, including reductions."""
    step.optimizer.step_of_wrapper = step


def step_of_wrapper(optimizer):
    """Return the step that a wrapper has given an optimizer; None without one."""
    return getattr(optimizer, "step_of_wrapper", None)


def is_wrapped(optimizer):
    """Whether a wrapper does the updates of this optimizer."""
    return step_of_wrapper(optimizer) is not None


def on_any_replica(flag):
    """Whether a boolean scalar is true on any replica; called in each of them."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce("SUM", tf.cast(flag, tf.float32)) > 0


def cond(context, predicate, then, otherwise, arguments=()):
    """Call one of two functions in each replica; unlike in a `tf.cond`, they may reduce.

    Args:
        context: the replica context.
        predicate: boolean tensor, the same on all replicas.
        then: function of this replica's `arguments`.
        otherwise: the same.
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
    """Assign each replica's own values to variables; called in each replica.

    Args:
        variables: Keras or TensorFlow variables.
        values: a tensor for each.
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
