"""The methods of a strategy that reduce gradients in a custom training loop."""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Iterator, Sequence

from tf_adasum.aggregation import Scheme
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.tensorflow import replica
from tf_adasum.replicas.aggregation_state import AggregationState


class GradientReductions:
    """The methods and properties of a strategy for the reduction of gradients."""

    _scheme: Scheme

    @functools.cached_property
    def _combined(self) -> set[int]:
        """The ids of replicas within `gradients_are_combined`, while a step is traced."""
        return set()

    @property
    def gradient_reduction(self) -> tensorflow_compat.GradientReduction:
        """Options that mark an `all_reduce` as a reduction of gradients.

        Use it in custom training loops without a Keras optimizer, or with `gradients_are_combined`.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> def combine(gradients):
            ...     context = tf.distribute.get_replica_context()
            ...     return context.all_reduce("SUM", gradients, options=strategy.gradient_reduction)
            >>> combined = strategy.run(combine, args=([tf.ones([3])],))
        """
        self.virtual_replicas.check(False)
        return tensorflow_compat.GradientReduction()

    def gradient_reduction_of(
        self, variables: Sequence[typing.Any]
    ) -> tensorflow_compat.GradientReduction:
        """Return `gradient_reduction` for the gradients of some variables.

        Use it if the rule has a state, or a granularity that needs variable paths. Call it once,
        before the training loop. Then reduce the gradients of all `variables`, in the same order.

        Args:
            variables: list of Keras variables.

        Raises:
            ValueError: if the rule's granularity does not fit the paths of the variables, or if
                `variables` is not a list of Keras variables.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy(aggregation="adacons")
            >>> with strategy.scope():
            ...     model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
            >>> options = strategy.gradient_reduction_of(model.trainable_variables)
        """
        if not all(isinstance(variable, keras_compat.VARIABLE_TYPES) for variable in variables):
            raise ValueError(
                f"`variables` must be a list of Keras variables. Received: variables={variables!r}"
            )
        paths = [keras_compat.path_of(variable) for variable in variables]
        state = self.aggregation_state(paths)
        return self.gradient_reduction.for_variables(state, range(len(paths)))

    def aggregation_state(
        self, paths: Sequence[str], others: Sequence[str] = ()
    ) -> AggregationState:
        """See `GradientAggregatingStrategy.aggregation_state`."""
        with self.scope():
            per_device = self.virtual_replicas.per_device
            return AggregationState(self._scheme, paths, others, per_device)

    @contextlib.contextmanager
    def gradients_are_combined(self) -> Iterator[None]:
        """Return a context manager in which a replica's optimizers do not combine gradients again.

        Use it in a custom training loop that changes the combined gradients, for example to clip
        them by their global norm.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> with strategy.scope():
            ...     weight = keras.Variable(tf.ones([3]))
            ...     optimizer = keras.optimizers.SGD(0.1)
            ...     optimizer.build([weight])
            >>> def step(gradients):
            ...     context = tf.distribute.get_replica_context()
            ...     marker = strategy.gradient_reduction
            ...     combined = context.all_reduce("SUM", gradients, options=marker)
            ...     clipped, _ = tf.clip_by_global_norm(combined, 1.0)
            ...     with strategy.gradients_are_combined():
            ...         optimizer.apply(clipped, [weight])
            >>> strategy.run(step, args=([tf.ones([3])],))
        """
        own = replica()
        self._combined.add(own)
        try:
            yield
        finally:
            self._combined.discard(own)

    @property
    def are_gradients_combined(self) -> bool:
        """Whether this replica is within `gradients_are_combined`."""
        return bool(self._combined) and replica() in self._combined
