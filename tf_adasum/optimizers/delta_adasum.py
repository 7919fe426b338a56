"""DeltaAdasum: combine the optimizer steps of the replicas, instead of their gradients."""

import contextlib
import functools
import typing
from collections.abc import Callable

import keras
import tensorflow as tf

from tf_adasum.aggregation import rules
from tf_adasum.aggregation.sparse import coalesced
from tf_adasum.arguments import check_count
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.optimizers.wrapper import WrapperOptimizer, check_optimizer, of_inner_optimizer

ONE_STEP = (
    "With `virtual_replicas`, DeltaAdasum combines in every step, and cannot skip a step, because "
    "the slots of earlier virtual replicas have changed. Use local_steps=1, no LossScaleOptimizer, "
    "and on_nonfinite='raise' or 'propagate', or use as many devices as replicas. "
    f"{see('TFA-316')}"
)


@keras.saving.register_keras_serializable("tf_adasum")
class DeltaAdasum(WrapperOptimizer):
    """Optimizer that combines the optimizer steps of the replicas, instead of their gradients.

    All replicas start from the same weights w. Each replica takes `local_steps` steps with its
    *own* optimizer on its *own* gradients. Then the strategy's rule combines the changes Δ_i:

        w_i = w + Δ_i,    w ← w + adasum(Δ_1, …, Δ_N)

    This is how the paper applies Adasum to Momentum, Adam and LAMB, whose steps depend on more than
    the gradient. For SGD without momentum and `local_steps` 1, it equals Adasum of the gradients.

    * The optimizer's slots (momenta, …) stay local to each replica and are never sent. A saved file
      holds the slots of only one replica: the first replica of the worker that wrote the file. If a
      worker with one device loads its own file, training resumes exactly. If a worker has several
      devices, or several workers load the same file, all replicas resume with the slots in that
      file. The weights are always exact, even with another number of workers.
    * With virtual replicas, a device keeps the slots of each of its replicas, and so does the file.
    * With `local_steps` k > 1, the replicas' weights differ between two combinations. The weights
      are also combined at the end of an epoch, and before `evaluate` and `predict`. In a custom
      loop, call `synchronize`. A combination averages the weights that the forward pass assigns,
      such as moving statistics. A file that is written within an epoch holds the weights of worker
      0.
    * `iterations` and schedules count every local step. With k > 1, `use_ema` and
      `ema_overwrite_frequency` count combinations.
    * A replica without rows takes no local step: its weights and slots do not change, unless the
      step ends an accumulation. `iterations` counts the step nevertheless.
    * Clipping and weight decay are part of the local steps. The inner optimizer gets sparse
      gradients, but the change Δ_i of an embedding is sent as a dense tensor.

    Args:
        optimizer: `keras.optimizers.Optimizer`, the optimizer of the local steps.
        local_steps: int, k, number of steps between two combinations. Defaults to `1`.
        name: str, name of the optimizer. Defaults to `"delta_adasum"`.

    Raises:
        ValueError: if `optimizer` is not a Keras optimizer or is already wrapped, or `local_steps`
            is below 1. When DeltaAdasum is created, built or used: if the strategy is not an
            `AdasumMirroredStrategy`, or if its rule is ``"mean"`` or `AdaCons(rescale=False)`.
            TensorFlow's default strategy is an error only when a step is taken.

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
        check_optimizer("DeltaAdasum", optimizer)
        expected = "must be an int, 1 or more: the steps between two combinations"
        check_count("local_steps", local_steps, expected)
        self.check_strategy(tf.distribute.get_strategy())
        super().__init__(optimizer, name)
        self.local_steps = local_steps
        self.set_step(DeltaStep(optimizer, local_steps))

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Raise a ValueError if a strategy cannot be used, except for the default strategy."""
        if tf.distribute.has_strategy():
            _check_strategy(strategy)

    def check(self) -> None:
        """Raise a ValueError if the current strategy or its rule cannot be used."""
        _check_strategy(tf.distribute.get_strategy())

    @property
    def settings(self) -> str:
        """The settings that must match on all workers, as a str."""
        return f"local_steps={self.local_steps}"

    def synchronize(self) -> None:
        """Combine the local steps that the replicas took since the last combination.

        All workers have to call this method, outside of `strategy.run`. It does nothing if
        `local_steps` is 1, or if there was no local step since the last combination.
        """
        if not self.is_synchronized:
            self._synchronize()

    @functools.cached_property
    def _synchronize(self) -> Callable[[], None]:
        return tensorflow_compat.function_without_retrace_warning(
            lambda: self._strategy.run(self._step.combine)
        )

    @property
    def is_synchronized(self) -> bool:
        """Whether all replicas have the same weights: no local step since the last combination."""
        return not self.built or self.local_steps == 1 or int(self._step.taken.numpy()) == 0

    learning_rate = of_inner_optimizer("learning_rate")

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        return {
            "optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "local_steps": self.local_steps,
            "name": self.name,
        }


class DeltaStep(keras_compat.Step):
    """Takes a local step, and combines the replicas' changes after every k local steps.

    `build` sets the attributes; it sets only `variables` and `slots` if k is 1.

    Args:
        optimizer: the inner optimizer.
        local_steps: k.

    Attributes:
        variables: the trainable variables.
        starts: variables with w, the weights before the first local step.
        taken: int64 scalar variable, the number of local steps since the last combination.
        combinations: int64 scalar variable, the number of combinations.
        slots: with several virtual replicas on a device, pairs of a variable of the inner optimizer
            and a variable with its values on these replicas, ``[k, …]``.
        assigned: list of the other weights that the forward pass assigns, such as the vector of a
            SpectralNormalization. A combination averages them, because the weights depend on them.
    """

    assigned: typing.Sequence = ()

    def __init__(self, optimizer, local_steps):
        super().__init__(optimizer)
        self.local_steps = local_steps

    def build(self, wrapper, variables):
        """Create two counters and a copy of the weights if k > 1."""
        self.variables = list(variables)
        if self.local_steps > 1:
            self.taken, self.combinations = (
                wrapper.add_variable((), dtype="int64", aggregation="only_first_replica", name=name)
                for name in ("local_steps_taken", "combinations")
            )
            self.starts = wrapper.add_optimizer_variables(variables, "start")
        strategy, self.slots = tf.distribute.get_strategy(), []
        if tf.distribute.has_strategy() and strategy._virtual_replicas.per_device > 1:
            self.slots = self.add_slots(wrapper, strategy._virtual_replicas.per_device)

    def update(self, values, variables):
        """Take a local step. After every k local steps, combine the changes of the replicas."""
        strategy = tf.distribute.get_strategy()
        virtual = strategy._virtual_replicas.step
        skips = virtual and (strategy._nonfinite.action == "skip" or "finite" in virtual.notes)
        if skips or (virtual and self.local_steps > 1):
            raise ValueError(ONE_STEP)
        if self.replicas > 1:
            values = [_with_each_row_once(value) for value in values]
        if self.local_steps > 1:
            self._update_in_turn(values, variables)
        elif self.replicas == 1:
            super().update(values, variables)
        else:
            starts = [tf.identity(variable) for variable in variables]
            with self._slots_of(virtual) if virtual else contextlib.nullcontext():
                super().update(values, variables)
            self._combine_changes(variables, starts)

    @contextlib.contextmanager
    def _slots_of(self, virtual):
        """Return a context in which the optimizer has the slots of the current virtual replica."""
        index, virtual.is_local = tf.reshape(virtual.index, [1]), True
        for slot, of_each in self.slots:
            slot.assign(tf.gather(of_each.value, index)[0])
        yield
        # `on_nonfinite="raise"` raises in the last micro-batch, after which the training may go on.
        is_bad = virtual.notes.get("not finite", 0.0) if virtual.hands_over else 0.0
        for slot, of_each in self.slots:
            now = slot.value[None]
            if tf.is_tensor(is_bad):
                now = tf.where(is_bad > 0, tf.gather(of_each.value, index), now)
            of_each.value.scatter_update(tf.IndexedSlices(now, index))
        virtual.is_local = False

    def skips(self):
        """Return whether this replica has no rows, and so skips the step; None if none skips it."""
        if self.replicas == 1 or keras_compat.accumulation_steps(self.optimizer) > 1:
            return None
        return tf.distribute.get_strategy()._empty_replicas.is_empty_if_any()

    def _update_in_turn(self, values, variables):
        self.assigned = self.assigned_in_forward_pass()
        context = tf.distribute.get_replica_context()
        keras_compat.cond(context, self.taken == 0, self._remember, lambda: None)
        super().update(values, variables)
        self.taken.assign_add(1)
        keras_compat.cond(context, self.taken >= self.local_steps, self.combine, lambda: None)

    def _remember(self):
        for start, variable in zip(self.starts, self.variables, strict=True):
            start.assign(variable)

    def combine(self):
        """Combine the changes since the last combination; called in each replica."""
        if self.replicas > 1:
            self._combine_changes(self.variables, self.starts)
            if self.assigned:
                keras_compat.average(self.assigned)
        self.taken.assign(0)
        if getattr(self.optimizer, "use_ema", False):
            self.update_averages(self.combinations)
        self.combinations.assign_add(1)

    def _combine_changes(self, variables, starts):
        """Compute w ← w + adasum(Δ_1, …, Δ_N)."""
        starts = [tf.convert_to_tensor(start) for start in starts]
        pairs = zip(variables, starts, strict=True)
        deltas = [tf.convert_to_tensor(variable) - start for variable, start in pairs]
        step = tf.distribute.get_strategy()._virtual_replicas.step
        if step and step.hands_over:  # the next virtual replica begins with the same weights
            keras_compat.assign(variables, starts)
        combined = keras_compat.combine(self.optimizer, deltas, variables)
        pairs = zip(starts, combined, strict=True)
        keras_compat.assign(variables, [start + delta for start, delta in pairs])

    def average(self):
        """Update the moving averages of the weights if k is 1; otherwise `combine` does it."""
        if self.local_steps == 1:
            super().average()


def _with_each_row_once(gradient):
    """Sum repeated rows of a sparse gradient; Keras's Adam would square them separately."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, rows = coalesced(gradient)
    rows = tf.reshape(rows, [-1, *gradient.values.shape[1:]])
    return tf.IndexedSlices(rows, tf.cast(indices, gradient.indices.dtype), gradient.dense_shape)


def _check_strategy(strategy):
    is_ours = keras_compat.is_ours(strategy)
    if not is_ours or strategy.aggregation.is_mean:
        received = type(strategy).__name__ if tf.distribute.has_strategy() else "no strategy"
        rule = strategy.aggregation if is_ours else None
        raise ValueError(
            "DeltaAdasum needs a strategy that combines the optimizer steps of the replicas with "
            "another rule than the mean. Build the model under an AdasumMirroredStrategy(), whose "
            "default rule is Adasum. "
            f"Received: {received}" + (f" with {rule!r}" if rule else "")
        )
    if isinstance(strategy.aggregation, rules.AdaCons) and not strategy.aggregation.rescale:
        raise ValueError(
            "DeltaAdasum needs AdaCons(rescale=True): without `rescale` the norm of the "
            "combination does not depend on the steps of the optimizer. "
            f"Received: {strategy.aggregation!r}"
        )
