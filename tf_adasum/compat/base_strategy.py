"""Declares the members of our strategies that compat, optimizers, callbacks and backups use.

These members are in a base class, so that other modules can call `isinstance` without importing
`tf_adasum.strategy`, which imports compat. The other members that these modules use exist in
every `tf.distribute.Strategy`.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tf_adasum.errors import deprecated


class Rule(Protocol):
    """See `aggregation.rules.AggregationRule`."""

    @property
    def is_mean(self) -> bool: ...
    @property
    def is_tree_of_pairs(self) -> bool: ...
    @property
    def needs_gram(self) -> bool: ...


class Workers(Protocol):
    """See `workers.workers.Workers`: this worker's rank, and the exchange of values."""

    rank: int
    count: int
    health: Any

    def gather(self, numbers: Any, /) -> Any: ...
    def compare_calls(self) -> None: ...
    def check_same(self, what: str, value: Any, *, code: str) -> None: ...


# Members of strategies that have an underscore now.
FORMERLY_PUBLIC = frozenset(
    "aggregation_state check_model check_same_gradients detecting_failures empty_replicas "
    "nonfinite seeds sharding split_batch workers".split()
)

# All strategies of this process that still exist.
live_strategies: weakref.WeakSet[GradientAggregatingStrategy] = weakref.WeakSet()


class GradientAggregatingStrategy(abc.ABC):
    """A `tf.distribute.Strategy` that combines the replicas' gradients with an aggregation rule."""

    _workers: Workers
    _seeds: Any  # `workers.seeds.Seeds`, with which workers shuffle
    _sharding: Any  # `workers.sharding.Sharding`, which shards and compares datasets
    _empty_replicas: Any  # `replicas.empty_replicas.EmptyReplicas`, which counts rows
    _nonfinite: Any  # `replicas.nonfinite_gradients.NonFinite`, for gradients with NaN or Inf
    _virtual_replicas: Any  # `replicas.virtual_replicas.VirtualReplicas`, for micro-batches

    # ---- how gradients are combined ------------------------------------------------------------

    @property
    @abc.abstractmethod
    def aggregation(self) -> Rule:
        """The rule that combines the gradients."""

    @abc.abstractmethod
    def _aggregation_state(self, paths: Sequence[str], others: Sequence[str] = ()) -> Any:
        """Create the `AggregationState` for the gradients of some variables.

        Args:
            paths: the paths of the variables. The index of a path is the number of its gradient.
            others: the paths of variables that other optimizers of the model update.

        Raises:
            ValueError: if the rule's granularity does not fit the paths, or a group has variables
                of several optimizers.
        """

    @property
    @abc.abstractmethod
    def are_gradients_combined(self) -> bool:
        """Whether this replica is within `gradients_are_combined`."""

    # ---- what happens in a step ----------------------------------------------------------------

    @property
    @abc.abstractmethod
    def num_virtual_replicas(self) -> int:
        """The number of replicas whose gradients are combined in a step."""

    @abc.abstractmethod
    def _check_same_gradients(self, names: Sequence[str], shapes: Sequence[str]) -> None:
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

    @abc.abstractmethod
    def working_together(self) -> AbstractContextManager[None]:
        """Return a context manager for code that all workers run together, such as `fit`."""

    @abc.abstractmethod
    def _detecting_failures(self) -> AbstractContextManager[None]:
        """Return a context manager like `working_together` that does not reuse collective keys."""

    @abc.abstractmethod
    def _check_model(self, model: Any) -> None:
        """Check that the shared variables of a model have the same bits on all replicas.

        Args:
            model: a `keras.Model` of this strategy.

        Raises:
            tf_adasum.ReplicasDifferError: on all workers. It names the first variable that differs.
        """

    @abc.abstractmethod
    def average_statistics(self, model: Any) -> None:
        """Average statistics that each replica computed from its own rows, such as moving means.

        Args:
            model: a built `keras.Model` of this strategy.
        """

    @abc.abstractmethod
    def _split_batch(self, batch: Any) -> Any:
        """Divide one global batch among all replicas.

        Args:
            batch: structure of arrays ``[rows, ...]``, the same on every worker. None stays None.

        Returns:
            The same structure, with the rows of each replica.

        Raises:
            ValueError: if there are no rows, or if the arrays have different lengths.
        """

    def __getattr__(self, name: str) -> Any:
        """Return an internal member that earlier had a public name, with a DeprecationWarning."""
        if name not in FORMERLY_PUBLIC:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        deprecated(f"strategy.{name}", f"strategy._{name}, which is internal")
        return getattr(self, f"_{name}")
