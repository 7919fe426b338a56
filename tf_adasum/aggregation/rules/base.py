"""What an aggregation rule is: a pure function from the Gram matrix to coefficients.

Shape legend: S segments (variables, or groups of them), R replicas.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

Granularity = str | Mapping[str, str]


class AggregationRule:
    """A map from the Gram matrices of the replicas' gradients to the coefficients of their sum.

    With ``g_1 … g_R`` the replicas' gradients of one variable, and ``G_ij = <g_i, g_j>``, the
    aggregated gradient is ``Σ_i c_i g_i`` with ``c = coefficients(G)``. Replicas come in the order
    of their ``replica_id_in_sync_group``.

    A rule sees ``g_i``, the gradient of replica i's *own* loss (the mean over its own rows, or
    their sum where the user chose a sum): the strategy switches off Keras's division of the loss by
    the number of replicas for every rule but `Mean`, which is TensorFlow's own path.

    A rule that remembers something from step to step implements `initial_state` and
    `coefficients_and_state` as well, and keeps being a pure function: the strategy makes variables
    of the state, and they are saved with the optimizer.

    Attributes:
        granularity: which variables share coefficients: ``"variable"``, each has its own;
            ``"model"``, all have the same; or ``{regular expression on variable paths: group}``.
            Segments of `gram` are such groups; the Gram matrix of a group is the sum of its
            variables'.
        needs_gram: False where the coefficients do not depend on the gradients; `gram` is zero
            then.
        works_in_levels: whether combinations of groups of replicas may be combined again, as a
            radix plan of several levels does. Otherwise the plan is ``[N]``.
        is_tree_of_pairs: whether the coefficients are those of `Adasum`'s tree. Then the cost model
            may choose a plan of several levels, levels are evaluated as one, and pairs are combined
            by `ops.pairwise_combine`. True for `Adasum` and for its subclasses that leave
            `coefficients` and `coefficients_and_state` as they are.
        is_stock_mean: whether TensorFlow's and Keras's own averaging takes the rule's place. True
            for `Mean` alone: a subclass is a rule like others, with plans and wire dtypes.

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
        """Whether the coefficients are those of `Adasum`'s tree."""
        return False

    @property
    def is_stock_mean(self) -> bool:
        """Whether TensorFlow's and Keras's own averaging takes the rule's place."""
        return False

    def computes_as(self, rule: type["AggregationRule"]) -> bool:
        """Whether the coefficients are those that a class computes, and no subclass's of it."""
        own = type(self)
        return (
            own.coefficients is rule.coefficients
            and own.coefficients_and_state is rule.coefficients_and_state
        )

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return the coefficients of the weighted sum.

        Args:
            gram: float64, shape ``[S, R, R]``: per segment the symmetric, positive semi-definite
                matrix of inner products. R is known statically.

        Returns:
            Floating-point numbers, shape ``[S, R]``, finite where `gram` is. Where a segment of
            `gram` is not finite, its coefficients do not matter: the aggregated gradient becomes
            NaN, for loss scaling to see.
        """
        raise NotImplementedError(f"{type(self).__name__} must define coefficients(gram).")

    def initial_state(self, segments: int, replicas: int) -> dict[str, np.ndarray]:
        """Return what the rule remembers, before the first step.

        Args:
            segments: S, of the whole model.
            replicas: R.

        Returns:
            dict from names to NumPy arrays ``[S, ...]``; empty for a rule without state.
        """
        del segments, replicas
        return {}

    def coefficients_and_state(
        self, gram: tf.Tensor, state: Mapping[str, tf.Tensor]
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Return the coefficients, and the state of the next step.

        Args:
            gram: as for `coefficients`.
            state: dict of tensors as made by `initial_state`, of these S segments.

        Returns:
            The coefficients ``[S, R]``, and a dict like `state`. The state of a segment whose
            `gram` is not finite stays as it was, whatever is returned.
        """
        return self.coefficients(gram), state

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, so that the rule can be saved."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "AggregationRule":
        """Return a rule made from what `get_config` returned."""
        return cls(**config)

    def __repr__(self) -> str:
        """Return the constructor's call."""
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"
