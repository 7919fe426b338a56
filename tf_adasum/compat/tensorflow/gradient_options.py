"""Markers of reductions whose values are gradients."""

import copy
from collections.abc import Sequence
from typing import Any

from tf_adasum.compat.tensorflow.private_names import CommunicationOptions, hooks


@hooks.overrides("merge")
class GradientOptions(CommunicationOptions):
    """Communication options that mark a reduction as a reduction of gradients.

    The marker is an argument of the call, because merge functions run in other threads, where
    thread-local values and context managers have no effect.

    Attributes:
        state: the `AggregationState` of the gradients' variables, or None.
        indices: the indices of the gradients' variables in this state.
        is_weighted: whether the gradients are already weighted by the rows of the replicas.
        parts: the number of nodes of Adasum's tree that each replica has for its virtual replicas.
            The list of a replica's gradients holds the gradients of these nodes one after another.
    """

    state: Any = None
    indices: tuple[int, ...] = ()
    is_weighted: bool = False
    parts: int = 1

    def for_variables(
        self, state: Any, indices: Sequence[int], is_weighted: bool = False
    ) -> "GradientOptions":
        """Return this marker for the gradients of some variables."""
        marker = copy.copy(self)
        marker.state, marker.indices, marker.is_weighted = state, tuple(indices), is_weighted
        return marker

    def with_options(self, options: CommunicationOptions) -> "GradientOptions":
        """Return this marker with the settings of `options`."""
        marker = copy.copy(self)
        for name in ("bytes_per_pack", "timeout_seconds", "implementation"):
            setattr(marker, name, getattr(options, name))
        return marker

    def merge(self, options):
        """Merge options, but keep this class, which marks a reduction as one of gradients."""
        return self.with_options(super().merge(options))
