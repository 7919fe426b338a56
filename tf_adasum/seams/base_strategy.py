"""What the seams, optimizers, callbacks and backups may ask of a strategy of this package.

A base class of its own, so that they can know such a strategy by `isinstance` without importing
`tf_adasum.strategy`, which imports the seams. Beyond these members they use what every
`tf.distribute.Strategy` has.
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


# The strategies that this program has made, as long as they are alive.
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
        """Options that mark an `all_reduce` as one of gradients.

        None where the rule is the mean: Keras and TensorFlow go their own way then.
        """

    @abc.abstractmethod
    def aggregation_state(self, paths: Sequence[str]) -> AggregationState:
        """Make what outlives the reductions of the gradients of some variables.

        Args:
            paths: the variables' paths, in the order in which gradients are numbered.

        Raises:
            ValueError: if the rule's granularity does not fit the paths.
        """

    # ---- what happens in a step ----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def empty_replicas(self) -> EmptyReplicas:
        """What knows, within `run`, which replicas have no rows, and zeroes their gradients."""

    @property
    @abc.abstractmethod
    def nonfinite(self) -> NonFinite:
        """What becomes of a step in which a gradient is not finite."""

    @abc.abstractmethod
    def check_same_gradients(self, names: Sequence[str], shapes: Sequence[str]) -> None:
        """Check that all replicas reduce gradients of the same shapes; in every reduction.

        Args:
            names: for each local replica the names of the variables whose gradients it reduces.
            shapes: for each local replica their dtypes, shapes and groups.

        Raises:
            ValueError: on all workers, if a replica lacks a gradient that another one has.
        """

    # ---- what workers do together between steps ------------------------------------------------

    @property
    @abc.abstractmethod
    def workers(self) -> Workers:
        """The workers: this one's rank, and what they tell each other. In one process, too."""

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
        """Return a context manager for what all workers do together, such as `fit`."""

    @abc.abstractmethod
    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager like `working_together`, for one step: it reuses no keys."""

    @abc.abstractmethod
    def check_model(self, model: typing.Any) -> None:
        """Check that all replicas hold the same bits of the variables of a model that they share.

        Args:
            model: a `keras.Model` of this strategy.

        Raises:
            tf_adasum.ReplicasDiffer: on all workers, naming the first variable that differs.
        """

    @abc.abstractmethod
    def average_statistics(self, model: typing.Any) -> None:
        """Average what each replica has counted on its own rows, such as moving means.

        Args:
            model: a built `keras.Model` of this strategy.
        """

    @abc.abstractmethod
    def split_batch(self, batch: typing.Any) -> typing.Any:
        """Split one global batch over all replicas.

        Args:
            batch: structure of arrays ``[B, ...]``, the same on every worker; None is left alone.

        Returns:
            The structure with each replica's own rows.

        Raises:
            ValueError: if there are no rows, or arrays of different length.
        """
