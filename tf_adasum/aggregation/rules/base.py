"""The base class of aggregation rules: pure functions from the Gram matrix to coefficients.

Shape legend: S segments (variables, or groups of them), R replicas.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

Granularity = str | Mapping[str, str]


class AggregationRule:
    """A map from the Gram matrices of the replicas' gradients to the coefficients of a sum.

    With ``g_1 … g_R`` the replicas' gradients of one variable, and ``G_ij = <g_i, g_j>``, the
    aggregated gradient is ``Σ_i c_i g_i`` with ``c = coefficients(G)``. Replicas come in the order
    of their ``replica_id_in_sync_group``.

    ``g_i`` is the gradient of replica i's *own* loss: the mean over its own rows, or the sum over
    these rows if you chose a sum. The strategy switches off Keras's division of the loss by the
    number of replicas.

    To write a rule, define `coefficients`. If the rule has a state that lasts from step to step,
    define `initial_state` and `coefficients_and_state` as well. They are also pure functions,
    because the strategy keeps the state in variables, which are saved with the optimizer.

    Attributes:
        granularity: which variables share coefficients. ``"variable"``: each variable has its own
            coefficients; ``"model"``: all variables share them; ``{regular expression on variable
            paths: group}``: the variables of a group share them. Each group is one segment of
            `gram`. The Gram matrix of a group is the sum over its variables.
        needs_gram: False if the coefficients do not depend on the gradients. Then `gram` may be
            zero, and optimizers clip the combined gradient instead of each replica's gradient.
        works_in_levels: whether the rule may be applied to the gradients within each group of
            replicas, and then to the results of the groups, as a radix plan of several levels does.
            If False, one level combines all N replicas: the plan ``[N]``.
        is_tree_of_pairs: whether the rule computes the coefficients of `Adasum`'s tree. If so, the
            default plan may have several levels, several levels may be evaluated as one,
            and pairs are combined by `ops.pairwise_combine`. True for `Adasum` and for subclasses
            that do not override `coefficients` and `coefficients_and_state`.
        is_mean: whether the rule computes the coefficients of `Mean`. If so, replicas are weighted
            by their rows.

    Example:
        >>> class UnitNorm(tf_adasum.rules.AggregationRule):
        ...     def coefficients(self, gram):
        ...         norms = tf.sqrt(tf.linalg.diag_part(gram))
        ...         return 1 / (norms + 1e-8) / gram.shape[-1]
        >>> UnitNorm().coefficients(tf.constant([[[4.0, 0.0], [0.0, 16.0]]], tf.float64)).numpy()
        array([[0.25 , 0.125]])
    """

    granularity: Granularity = "variable"
    needs_gram: bool = True
    works_in_levels: bool = False

    @property
    def is_tree_of_pairs(self) -> bool:
        """Whether the rule computes the coefficients of `Adasum`'s tree."""
        return False

    @property
    def is_mean(self) -> bool:
        """Whether the rule computes the coefficients of `Mean`."""
        return False

    def computes_as(self, rule: type["AggregationRule"]) -> bool:
        """Return whether this rule computes its coefficients with the methods of class `rule`."""
        own = type(self)
        return (
            own.coefficients is rule.coefficients
            and own.coefficients_and_state is rule.coefficients_and_state
        )

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return the coefficients of the weighted sum.

        Args:
            gram: float64, shape ``[S, R, R]``: for each segment the symmetric, positive
                semi-definite matrix of inner products. R is known statically.

        Returns:
            Floating-point numbers, shape ``[S, R]``. They must be finite if the segment of `gram`
            is finite. If the segment is not finite, its coefficients are ignored: the aggregated
            gradient becomes NaN, so that loss scaling detects it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define coefficients(gram).")

    def initial_state(self, segments: int, replicas: int) -> dict[str, np.ndarray]:
        """Return the state of the rule before the first step.

        Args:
            segments: S, the number of segments of the whole model.
            replicas: R, the number of replicas.

        Returns:
            dict from names to NumPy arrays ``[S, ...]``; empty for a rule without state.
        """
        return {}

    def coefficients_and_state(
        self, gram: tf.Tensor, state: Mapping[str, tf.Tensor]
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Return the coefficients, and the state for the next step.

        Args:
            gram: as for `coefficients`.
            state: dict of tensors with the names of `initial_state`, for the S segments of `gram`.

        Returns:
            The coefficients ``[S, R]``, and a dict like `state`. If the `gram` of a segment is not
            finite, the returned state is ignored, and the state of the segment does not change.
        """
        return self.coefficients(gram), state

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, so that the rule can be saved."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "AggregationRule":
        """Return a rule from the config that `get_config` returned."""
        return cls(**config)

    def __repr__(self) -> str:
        """Return the call of the constructor as text."""
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"
