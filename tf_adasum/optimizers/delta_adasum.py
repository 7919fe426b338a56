"""DeltaAdasum: Adasum after the optimizer, on the steps that the replicas have taken."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tf_adasum.aggregation import rules
from tf_adasum.aggregation.sparse import coalesced
from tf_adasum.arguments import check_count
from tf_adasum.optimizers.wrapper import WrapperOptimizer, checked
from tf_adasum.seams import keras as keras_seam
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.base_strategy import GradientAggregatingStrategy


@keras.saving.register_keras_serializable("tf_adasum")
class DeltaAdasum(WrapperOptimizer):
    """Optimizer that combines what another one makes of each replica's gradient.

    Each replica takes `local_steps` steps of its *own* optimizer on its *own* gradients, from the
    same weights w; then the strategy's rule combines how far each has come:

        w_i = w + Δ_i,    w ← w + adasum(Δ_1, …, Δ_N)

    It is how Adasum is meant to be used with Momentum, Adam and LAMB, whose steps depend on more
    than the gradient. With SGD without momentum and one local step it is what Adasum of the
    gradients is.

    * The optimizer's slots (momenta, …) are each replica's own and never sent. A file holds those
      of its writer's first replica: a worker with one device that saves and loads a file of its own
      goes on exactly; several devices, or workers that load one file, go on with these slots on
      all. On another number of workers it is the same: the weights are exact.
    * With `local_steps` k > 1 the replicas' weights differ between two combinations. At the end of
      an epoch and before a model is evaluated or predicts they are combined ahead of time; in a
      custom loop `synchronize` does it. A file that is written within an epoch holds the weights of
      worker 0.
    * `iterations`, and with it schedules, counts every local step. With k > 1 `use_ema` and
      `ema_overwrite_frequency` count combinations.
    * A replica without rows takes no local step: neither its weights nor its slots move, unless it
      ends an accumulation. `iterations` counts it.
    * Clipping and weight decay are part of the local steps. Sparse gradients are for the inner
      optimizer; how far an embedding has come is sent as a whole.

    Args:
        optimizer: `keras.optimizers.Optimizer`, the one that takes the local steps.
        local_steps: int, k, steps between two combinations. Defaults to `1`.
        name: str, name of the optimizer. Defaults to `"delta_adasum"`.

    Raises:
        ValueError: for what is no optimizer or is wrapped already, `local_steps` below 1; when it
            is built or used: under another strategy than an `AdasumMirroredStrategy`, under its
            rule ``"mean"``, or under `AdaCons` without `rescale`.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import tf_adasum
        >>> strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
        >>> with strategy.scope():
        ...     adam = keras.optimizers.Adam(1e-3)
        ...     optimizer = tf_adasum.optimizers.DeltaAdasum(adam, local_steps=4)
        ...     model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        ...     model.compile(optimizer, "mse")
        >>> history = model.fit(np.ones([6, 2]), np.ones([6, 1]), batch_size=1, verbose=0)
        >>> int(optimizer.iterations.numpy()), optimizer.is_synchronized  # after 4 steps, and 6
        (6, True)

    Reference:
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021
        (arXiv 2006.02924), section 3.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        *,
        local_steps: int = 1,
        name: str = "delta_adasum",
    ):
        checked("DeltaAdasum", optimizer)
        expected = "must be an int, 1 or more: the steps between two combinations"
        check_count("local_steps", local_steps, expected)
        if tf.distribute.has_strategy():
            _check_strategy(tf.distribute.get_strategy())
        super().__init__(optimizer, name)
        self.local_steps = local_steps
        self.take_steps(DeltaStep(optimizer, local_steps))

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Raise a ValueError for a strategy that does not combine gradients; none is let pass."""
        if tf.distribute.has_strategy():
            _check_strategy(strategy)

    def check(self) -> None:
        """Raise a ValueError outside of a strategy of ours."""
        _check_strategy(tf.distribute.get_strategy())

    @property
    def settings(self) -> str:
        """What all workers have to have in common, as a str."""
        return f"local_steps={self.local_steps}"

    def synchronize(self) -> None:
        """Combine now what the replicas have done since the last combination.

        All workers have to call it, outside of `strategy.run`. With one local step, or if there was
        none since, it does nothing.
        """
        if self.is_synchronized:
            return
        if self._synchronize is None:
            self._synchronize = tensorflow_seam.counted_alone(
                lambda: self._strategy.run(self._step.combine)
            )
        self._synchronize()

    @property
    def is_synchronized(self) -> bool:
        """Whether the replicas' weights are the same: no local step since the last combination."""
        return not self.built or self.local_steps == 1 or int(self._step.taken.numpy()) == 0

    _synchronize: Callable[[], None] | None = None

    @property
    def learning_rate(self):
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        return {
            "optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "local_steps": self.local_steps,
            "name": self.name,
        }


class DeltaStep(keras_seam.Step):
    """One local step, and after every so many the combination.

    Args:
        optimizer: the inner optimizer.
        local_steps: k.

    Attributes:
        variables: those of the optimizer, known when it is built; as are, for k > 1,
        starts: w, as variables: the weights before the first local step,
        taken: int64 scalar variable, the local steps since,
        combinations: int64 scalar variable, how many there were.
    """

    def __init__(self, optimizer, local_steps):
        super().__init__(optimizer)
        self.local_steps = local_steps

    def build(self, wrapper, variables):
        """Make, for k > 1, two counters and a copy of the weights."""
        self.variables = list(variables)
        if self.local_steps > 1:
            self.taken, self.combinations = (
                wrapper.add_variable((), dtype="int64", aggregation="only_first_replica", name=name)
                for name in ("local_steps_taken", "combinations")
            )
            self.starts = wrapper.add_optimizer_variables(variables, "start")

    def update(self, values, variables):
        """Take a local step, and combine if it is the last one."""
        if self.replicas > 1:
            values = [_with_each_row_once(value) for value in values]
        if self.local_steps > 1:
            self._update_in_turn(values, variables)
        elif self.replicas == 1:
            super().update(values, variables)
        else:
            starts = [tf.identity(variable) for variable in variables]
            super().update(values, variables)
            self._combine(variables, starts)

    def rests(self):
        """Let a replica without rows take no local step, not even one of its momentum."""
        if self.replicas == 1 or keras_seam.accumulation_steps(self.optimizer) > 1:
            return None
        return tf.distribute.get_strategy().empty_replicas.is_empty_if_any()

    def _update_in_turn(self, values, variables):
        context = tf.distribute.get_replica_context()
        keras_seam.cond(context, self.taken == 0, self._remember, lambda: None)
        super().update(values, variables)
        self.taken.assign_add(1)
        keras_seam.cond(context, self.taken >= self.local_steps, self.combine, lambda: None)

    def _remember(self):
        for start, variable in zip(self.starts, self.variables, strict=True):
            start.assign(variable)

    def combine(self):
        """Combine the local steps taken since the last time; called in each replica."""
        if self.replicas > 1:
            self._combine(self.variables, self.starts)
        self.taken.assign(0)
        if getattr(self.optimizer, "use_ema", False):
            keras_seam.average_weights(self.optimizer, self.combinations)
        self.combinations.assign_add(1)

    def _combine(self, variables, starts):
        """w ← w + adasum(Δ_1, …, Δ_N)."""
        starts = [tf.convert_to_tensor(start) for start in starts]
        pairs = zip(variables, starts, strict=True)
        deltas = [tf.convert_to_tensor(variable) - start for variable, start in pairs]
        combined = keras_seam.combine(self.optimizer, deltas, variables)
        pairs = zip(starts, combined, strict=True)
        keras_seam.assign(variables, [start + delta for start, delta in pairs])

    def average(self):
        """Move the moving averages of the weights, where all replicas have the same weights."""
        if self.local_steps == 1:
            super().average()


def _with_each_row_once(gradient):
    """Sum the repeated rows of a sparse gradient: Keras's Adam squares them one by one."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, rows = coalesced(gradient)
    rows = tf.reshape(rows, [-1, *gradient.values.shape[1:]])
    return tf.IndexedSlices(rows, tf.cast(indices, gradient.indices.dtype), gradient.dense_shape)


def _check_strategy(strategy):
    is_ours = isinstance(strategy, GradientAggregatingStrategy)
    if not is_ours or strategy.gradient_reduction is None:
        received = type(strategy).__name__ if tf.distribute.has_strategy() else "no strategy"
        rule = strategy.aggregation if is_ours else None
        raise ValueError(
            "DeltaAdasum combines the steps that replicas take on their own, undivided gradients; "
            "strategies that average divide each by the number of replicas. Build the model under "
            "an AdasumMirroredStrategy(), whose rule is Adasum. "
            f"Received: {received}" + (f" with {rule!r}" if rule else "")
        )
    if isinstance(strategy.aggregation, rules.AdaCons) and not strategy.aggregation.rescale:
        raise ValueError(
            "AdaCons gives the combination a length of its own, which is no step of an optimizer: "
            f"use AdaCons(rescale=True). Received: {strategy.aggregation!r}"
        )
