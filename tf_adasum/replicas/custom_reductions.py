"""The methods of a strategy that reduce gradients in a custom training loop."""

import contextlib
import functools
import typing
from collections.abc import Iterator, Sequence

from tf_adasum.aggregation import Scheme
from tf_adasum.arguments import check
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.replicas.aggregation_state import AggregationState


class CustomReductions:
    """The methods and properties of a strategy for the reduction of gradients."""

    _scheme: Scheme

    @functools.cached_property
    def _combined(self) -> set[int]:
        """The ids of replicas within `gradients_are_combined`, while a step is traced."""
        return set()

    @property
    def gradient_reduction(self) -> tensorflow_compat.GradientOptions:
        """Options that mark an `all_reduce` as a reduction of gradients.

        For custom loops without a Keras optimizer, or with `gradients_are_combined`.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy()
            >>> def combine(gradients):
            ...     context = tf.distribute.get_replica_context()
            ...     return context.all_reduce("SUM", gradients, options=strategy.gradient_reduction)
            >>> combined = strategy.run(combine, args=([tf.ones([3])],))
        """
        self._virtual_replicas.check(False)
        return tensorflow_compat.GradientOptions()

    def gradient_reduction_of(
        self, variables: Sequence[typing.Any]
    ) -> tensorflow_compat.GradientOptions:
        """Return `gradient_reduction` for the gradients of some variables.

        Call it once, before the loop, and reduce the gradients of all variables in this order.

        Args:
            variables: list of Keras variables.

        Raises:
            ValueError: if the rule's granularity does not fit their paths.

        Example:
            >>> strategy = tf_adasum.AdasumMirroredStrategy(aggregation="adacons")
            >>> with strategy.scope():
            ...     model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
            >>> options = strategy.gradient_reduction_of(model.trainable_variables)
        """
        are_variables = all(isinstance(each, keras_compat.VARIABLE_TYPES) for each in variables)
        check("variables", variables, are_variables, "must be a list of Keras variables")
        paths = [keras_compat.path_of(variable) for variable in variables]
        state = self._aggregation_state(paths)
        return self.gradient_reduction.for_variables(state, range(len(paths)))

    def _aggregation_state(
        self, paths: Sequence[str], others: Sequence[str] = ()
    ) -> AggregationState:
        """Create the `AggregationState` for the gradients of some variables.

        Args:
            paths: the paths of the variables. The index of a path is the number of its gradient.
            others: the paths of variables that other optimizers of the model update.

        Raises:
            ValueError: if the rule's granularity does not fit the paths, or a group has variables
                of several optimizers.
        """
        with self.scope():
            per_device = self._virtual_replicas.per_device
            return AggregationState(self._scheme, paths, others, per_device)

    @contextlib.contextmanager
    def gradients_are_combined(self) -> Iterator[None]:
        """Return a context manager in which a replica's optimizers do not combine gradients again.

        For custom loops that change the combined gradients, such as clipping
        (docs/custom_loops.md).
        """
        self._virtual_replicas.check(False)
        own = tensorflow_compat.replica()
        self._combined.add(own)
        try:
            yield
        finally:
            self._combined.discard(own)

    @property
    def are_gradients_combined(self) -> bool:
        """Whether this replica is within `gradients_are_combined`."""
        return bool(self._combined) and tensorflow_compat.replica() in self._combined
