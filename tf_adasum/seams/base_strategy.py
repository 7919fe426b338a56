"""The members of a strategy of this package that seams, optimizers, callbacks and backups use.

They are in a separate base class, so that `isinstance` can be used without importing
`tf_adasum.strategy`, which imports the seams. Other members are the members of every
`tf.distribute.Strategy`.
"""

from __future__ import annotations

import abc
import typing
import weakref

if typing.TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence

    from tf_adasum.aggregation.rules import AggregationRule
    from tf_adasum.replicas.aggregation_state import AggregationState
    from tf_adasum.replicas.empty_replicas import EmptyReplicas
    from tf_adasum.replicas.nonfinite_gradients import NonFinite
    from tf_adasum.seams.tensorflow import GradientReduction
    from tf_adasum.workers.seeds import Seeds
    from tf_adasum.workers.sharding import Sharding
    from tf_adasum.workers.workers import Workers


# The strategies of this program that still exist.
made: weakref.WeakSet[GradientAggregatingStrategy] = weakref.WeakSet()


class GradientAggregatingStrategy(abc.ABC):
    """A `tf.distribute.Strategy` that combines the replicas' gradients by an aggregation rule."""

    # ---- how gradients are combined ------------------------------------------------------------

    @property
    @abc.abstractmethod
    def aggregation(self) -> AggregationRule:
        """The rule that combines the gradients."""

    @property
    @abc.abstractmethod
    def gradient_reduction(self) -> GradientReduction | None:
        """Options that mark an `all_reduce` as a reduction of gradients.

        None if the rule is the mean: then Keras and TensorFlow average gradients themselves.
        """

    @abc.abstractmethod
    def aggregation_state(self, paths: Sequence[str]) -> AggregationState:
        """Create the state that reductions of the gradients of some variables keep.

        Args:
            paths: the variables' paths, in the order in which gradients are numbered.

        Raises:
            ValueError: if the rule's granularity does not fit the paths.
        """

    # ---- what happens in a step ----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def empty_replicas(self) -> EmptyReplicas:
        """Determines, within `run`, which replicas have no rows, and zeroes their gradients."""

    @property
    @abc.abstractmethod
    def nonfinite(self) -> NonFinite:
        """Handles steps in which a gradient is not finite."""

    @abc.abstractmethod
    def check_same_gradients(self, names: Sequence[str], shapes: Sequence[str]) -> None:
        """Check, in every reduction, that all replicas reduce gradients of the same shapes.

        Args:
            names: the names of the variables whose gradients each local replica reduces.
            shapes: their dtypes, shapes and groups, for each local replica.

        Raises:
            ValueError: on all workers, if a replica lacks a gradient that another replica has.
        """

    # ---- what workers do together between steps ------------------------------------------------

    @property
    @abc.abstractmethod
    def workers(self) -> Workers:
        """The workers: the rank of this worker, and the exchange of values; also in one process."""

    @property
    @abc.abstractmethod
    def seeds(self) -> Seeds:
        """Seeds of shuffles."""

    @property
    @abc.abstractmethod
    def sharding(self) -> Sharding:
        """How datasets are sharded, and whether workers have the same data."""

    @abc.abstractmethod
    def working_together(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager for code that all workers run together, such as `fit`."""

    @abc.abstractmethod
    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager like `working_together`, for one step: it reuses no keys."""

    @abc.abstractmethod
    def check_model(self, model: typing.Any) -> None:
        """Check that all replicas hold the same bits of the variables of a model that they share.

        Args:
            model: a `keras.Model` of this strategy.

        Raises:
            tf_adasum.ReplicasDiffer: on all workers; it names the first variable that differs.
        """

    @abc.abstractmethod
    def average_statistics(self, model: typing.Any) -> None:
        """Average statistics that each replica computed from its own rows, such as moving means.

        Args:
            model: a built `keras.Model` of this strategy.
        """

    @abc.abstractmethod
    def split_batch(self, batch: typing.Any) -> typing.Any:
        """Split one global batch over all replicas.

        Args:
            batch: structure of arrays ``[B, ...]``, the same on every worker; None stays None.

        Returns:
            The structure with each replica's own rows.

        Raises:
            ValueError: if there are no rows, or if the arrays have different lengths.
        """
