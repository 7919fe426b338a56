"""Declares the members of our strategies that compat, optimizers, callbacks and backups use.

These members are in a base class, so that other modules can call `isinstance` without importing
`tf_adasum.strategy`, which imports compat. The other members that these modules use exist in
every `tf.distribute.Strategy`.
"""

from __future__ import annotations

import abc
import typing
import weakref

if typing.TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence

    from tf_adasum.aggregation.rules import AggregationRule
    from tf_adasum.compat.tensorflow import GradientReduction
    from tf_adasum.replicas.aggregation_state import AggregationState
    from tf_adasum.replicas.empty_replicas import EmptyReplicas
    from tf_adasum.replicas.nonfinite_gradients import NonFinite
    from tf_adasum.replicas.virtual_replicas import VirtualReplicas
    from tf_adasum.workers.seeds import Seeds
    from tf_adasum.workers.sharding import Sharding
    from tf_adasum.workers.workers import Workers


# All strategies of this process that still exist.
live_strategies: weakref.WeakSet[GradientAggregatingStrategy] = weakref.WeakSet()


class GradientAggregatingStrategy(abc.ABC):
    """A `tf.distribute.Strategy` that combines the replicas' gradients with an aggregation rule."""

    # ---- how gradients are combined ------------------------------------------------------------

    @property
    @abc.abstractmethod
    def aggregation(self) -> AggregationRule:
        """The rule that combines the gradients."""

    @property
    @abc.abstractmethod
    def gradient_reduction(self) -> GradientReduction:
        """The options that mark an `all_reduce` as a reduction of gradients."""

    @abc.abstractmethod
    def aggregation_state(
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

    @abc.abstractmethod
    def gradients_are_combined(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which optimizers of a replica do not combine gradients again."""

    @property
    @abc.abstractmethod
    def are_gradients_combined(self) -> bool:
        """Whether this replica is within `gradients_are_combined`."""

    # ---- what happens in a step ----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def empty_replicas(self) -> EmptyReplicas:
        """The object that detects replicas without rows in `run`, and zeroes their gradients."""

    @property
    @abc.abstractmethod
    def nonfinite(self) -> NonFinite:
        """The object that handles steps in which a gradient is not finite."""

    @property
    @abc.abstractmethod
    def virtual_replicas(self) -> VirtualReplicas:
        """The object that runs the micro-batches of each replica."""

    @property
    @abc.abstractmethod
    def num_virtual_replicas(self) -> int:
        """The number of replicas whose gradients are combined in a step."""

    @abc.abstractmethod
    def check_same_gradients(self, names: Sequence[str], shapes: Sequence[str]) -> None:
        """Check that all replicas reduce gradients of the same shapes. Called in every reduction.

        Args:
            names: for each local replica, a text with the names of the variables whose gradients
                this replica reduces.
            shapes: for each local replica, a text with the dtype, shape and group number of each of
                these gradients.

        Raises:
            ValueError: on all workers, if a replica lacks a gradient that another replica has.
        """

    # ---- what workers do together between steps ------------------------------------------------

    @property
    @abc.abstractmethod
    def workers(self) -> Workers:
        """The `Workers`: this worker's rank, and the exchange of values (also with one worker)."""

    @property
    @abc.abstractmethod
    def seeds(self) -> Seeds:
        """The seeds that workers use to shuffle."""

    @property
    @abc.abstractmethod
    def sharding(self) -> Sharding:
        """The object that shards datasets, and checks that workers have the same data."""

    @abc.abstractmethod
    def working_together(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager for code that all workers run together, such as `fit`."""

    @abc.abstractmethod
    def detecting_failures(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager like `working_together` that does not reuse collective keys."""

    @abc.abstractmethod
    def check_model(self, model: typing.Any) -> None:
        """Check that the shared variables of a model have the same bits on all replicas.

        Args:
            model: a `keras.Model` of this strategy.

        Raises:
            tf_adasum.ReplicasDiffer: on all workers. It names the first variable that differs.
        """

    @abc.abstractmethod
    def average_statistics(self, model: typing.Any) -> None:
        """Average statistics that each replica computed from its own rows, such as moving means.

        Args:
            model: a built `keras.Model` of this strategy.
        """

    @abc.abstractmethod
    def split_batch(self, batch: typing.Any) -> typing.Any:
        """Divide one global batch among all replicas.

        Args:
            batch: structure of arrays ``[rows, ...]``, the same on every worker. None stays None.

        Returns:
            The same structure, with the rows of each replica.

        Raises:
            ValueError: if there are no rows, or if the arrays have different lengths.
        """
