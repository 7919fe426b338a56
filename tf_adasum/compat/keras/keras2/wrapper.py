"""Connects wrapper optimizers to Keras 2 and to their inner optimizers."""

import keras
import tensorflow as tf

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras2.updates import all_variables, build
from tf_adasum.compat.keras.optimizer_steps import BaseStep
from tf_adasum.compat.keras.optimizer_variables_keras2 import distributed, key_of
from tf_adasum.compat.keras.optimizers import (
    assign,
    cond,
    floating,
    on_any_replica,
    our_replica_context,
)
from tf_adasum.compat.keras.private_names_keras2 import (
    CallableList,
    LossScaleOptimizerV3,
    Optimizer,
    OptimizerV2,
)

# The module with the class `LAMB`.
LAMB_MODULE = "tf_adasum.optimizers.addons_lamb"

# Keras 2 has no `SwapEMAWeights`.
OF_SWAP_EMA_WEIGHTS: tuple[str, ...] = ()


class Step(BaseStep):
    """Takes the steps of a Keras 2 optimizer that is the inner optimizer of a wrapper."""

    def update(self, values, variables):
        """Clip gradients, decay weights and update the variables.

        A replica that skips the step restores its variables.
        """
        optimizer, skips, had = self.optimizer, self.skips(), []
        pairs = list(zip(values, map(distributed, variables), strict=True))
        if skips is not None:
            own = [v for v in all_variables(optimizer) if v is not optimizer.iterations]
            had = [(v, tf.identity(v)) for v in [*(v for _, v in pairs), *own]]
        if isinstance(optimizer, OptimizerV2):
            OptimizerV2.apply_gradients.__wrapped__(
                optimizer, pairs, experimental_aggregate_gradients=False
            )
        else:
            self._update(*zip(*pairs, strict=True))
        if had:
            moved, before = zip(*had, strict=True)
            assign(moved, [tf.where(skips, *pair) for pair in zip(before, moved, strict=True)])

    def _update(self, gradients, variables):
        """Do what `Optimizer.apply_gradients` does after it has reduced the gradients."""
        optimizer = self.optimizer

        def across_replicas(strategy, pairs):
            use_ema, optimizer.use_ema = optimizer.use_ema, False  # `average` does it
            try:
                optimizer._distributed_apply_gradients_fn(strategy, pairs)
            finally:
                optimizer.use_ema = use_ema

        with tf.name_scope(optimizer.name):
            optimizer._compute_current_learning_rate()
            gradients = optimizer._clip_gradients(list(gradients))
            gradients = optimizer._deduplicate_sparse_grad(gradients)
            optimizer._apply_weight_decay(variables)
            pairs = list(zip(gradients, variables, strict=True))
            tf.distribute.get_replica_context().merge_call(across_replicas, args=(pairs,))
            for variable in variables:
                if variable.constraint is not None:
                    variable.assign(variable.constraint(variable))

    def average(self):
        """Update the moving averages of the weights, and apply `ema_overwrite_frequency`."""
        self.update_averages(self.optimizer.iterations - 1)

    def update_averages(self, count):
        """Update the averages of the weights, as Keras does, but with another count of updates.

        The averages start with the weights before the first step.
        """
        optimizer = self.optimizer
        if not getattr(optimizer, "use_ema", False):
            return
        variables, frequency = optimizer.first_variables, optimizer.ema_overwrite_frequency

        def across_replicas(strategy):
            optimizer._update_model_variables_moving_average(variables)

        def overwrite():
            for variable in variables:
                index = optimizer._index_dict[key_of(variable)]
                variable.assign(optimizer._model_variables_moving_average[index])

        context = tf.distribute.get_replica_context()
        context.merge_call(across_replicas)
        if frequency:
            cond(context, (count + 1) % frequency == 0, overwrite, lambda: None)


class WrapperBase(Optimizer):
    """The base class of optimizers that wrap another optimizer.

    Subclasses define `inner_optimizer`, `learning_rate`, `build` and
    ``apply(gradients, variables)``, which takes a step.

    Args:
        name: name of the optimizer.
    """

    def __init__(self, name):
        super().__init__(name=name)
        self.built = False

    def aggregate_gradients(self, grads_and_vars):
        """Return the gradients, or NaN on all replicas if one replica's gradients are not finite.

        The step reduces the gradients later. `tf.keras.mixed_precision.LossScaleOptimizer` checks
        after this call whether the gradients are finite.
        """
        grads_and_vars = list(grads_and_vars)
        present = [g for g, _ in grads_and_vars if g is not None]
        flags = [tf.reduce_all(tf.math.is_finite(_values(gradient))) for gradient in present]
        bad = on_any_replica(tf.logical_not(tf.reduce_all(flags)))

        def spread(gradient):
            if gradient is None:
                return None
            values = _values(gradient)
            values = tf.where(bad, tf.constant(float("nan"), values.dtype), values)
            if not isinstance(gradient, tf.IndexedSlices):
                return values
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

        return [(spread(gradient), variable) for gradient, variable in grads_and_vars]

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs
    ):
        """Take a step with pairs of gradients and variables, and return `iterations`."""
        grads_and_vars = list(grads_and_vars)
        if grads_and_vars:
            self.apply(*zip(*grads_and_vars, strict=True))
        return self.iterations

    def add_variable(self, shape, initializer="zeros", dtype=None, aggregation=None, name=None):
        """Create a variable of this optimizer.

        Args: as in Keras 3. `aggregation` is ``"only_first_replica"`` or None.
        """
        aggregations = {
            None: tf.VariableAggregation.NONE,
            "only_first_replica": tf.VariableAggregation.ONLY_FIRST_REPLICA,
        }
        variable = tf.Variable(
            keras.initializers.get(initializer)(shape, dtype),
            trainable=False,
            name=name,
            aggregation=aggregations[aggregation],
        )
        self._variables.append(variable)
        return variable

    def add_optimizer_variables(self, variables, name):
        """Create a variable of zeros for each variable of a list."""
        return [self.add_variable_from_reference(variable, name) for variable in variables]

    @property
    def variables(self):
        """The variables of this optimizer and of the inner optimizer."""
        inner = self.inner_optimizer.variables
        return CallableList(self._own_variables() + list(inner() if callable(inner) else inner))

    def _variables_to_save(self):
        """Return what Keras does not save: own variables, and those of a legacy optimizer."""
        inner = self.inner_optimizer
        of_inner = list(inner.variables()) if isinstance(inner, OptimizerV2) else []
        return self._own_variables() + of_inner

    def _own_variables(self):
        return [variable for variable in self._variables if variable is not self._iterations]


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


@hooks.replaces(LossScaleOptimizerV3, "apply_gradients")
def apply_gradients(original, self, grads_and_vars, *args, **kwargs):
    """Build the inner optimizer before the step.

    Keras would build it in a `tf.init_scope`, in which replicas cannot wait for each other.
    """
    grads_and_vars = list(grads_and_vars)
    if isinstance(self.inner_optimizer, WrapperBase) or our_replica_context():
        build(self.inner_optimizer, [variable for _, variable in grads_and_vars])
    return original(self, grads_and_vars, *args, **kwargs)


def swap_learning_rate(optimizer, learning_rate):
    """Replace the learning rate of an optimizer, and return the previous learning rate.

    Args:
        optimizer: the optimizer.
        learning_rate: a variable, a number or a schedule.
    """
    if isinstance(optimizer, OptimizerV2):
        if optimizer._initial_decay:
            raise ValueError(
                "The argument `decay` counts iterations, and not steps of the small batch. Pass a "
                "schedule instead, such as tf.keras.optimizers.schedules.InverseTimeDecay. "
                f"Received: decay={optimizer._initial_decay}"
            )
        optimizer._create_hypers()  # a number becomes a variable
        if "learning_rate" not in optimizer._hyper:
            raise ValueError(
                "This optimizer has no learning rate that can be scaled. "
                f"Received: optimizer={type(optimizer).__name__}(…)"
            )
        had = optimizer._hyper["learning_rate"]
        optimizer._hyper["learning_rate"] = learning_rate
        return had
    had, optimizer._learning_rate = optimizer._learning_rate, learning_rate
    if isinstance(had, tf.Variable):
        optimizer.learning_rate_before = had  # so that tf.train.Checkpoint finds it
    is_schedule = isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule)
    current = getattr(optimizer, "_current_learning_rate", None)
    if is_schedule and (current is None or not current.dtype.is_floating):
        optimizer._current_learning_rate = tf.Variable(
            floating(had(0) if callable(had) and not isinstance(had, tf.Variable) else had),
            trainable=False,
            name="current_learning_rate",
        )
    return had
