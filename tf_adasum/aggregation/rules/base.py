"""What an aggregation rule is: a pure function from the Gram matrix to coefficients.

Shape legend: S segments (one per variable), R replicas.
"""


class AggregationRule:
    """Maps the Gram matrices of the replicas' gradients to the coefficients of their sum.

    With ``g_1 … g_R`` the replicas' gradients of one variable, and ``G_ij = <g_i, g_j>``, the
    aggregated gradient is ``Σ_i c_i g_i`` with ``c = coefficients(G)``. Replicas come in the order
    of their ``replica_id_in_sync_group``.

    A rule sees ``g_i``, the gradient of replica i's *own* loss (the mean over its own rows, or
    their sum where the user chose a sum): the strategy switches off Keras's division of the loss by
    the number of replicas for every rule but `Mean`, which is TensorFlow's own path.

    Example:
        >>> class UnitNorm(AggregationRule):
        ...     def coefficients(self, gram):
        ...         norms = tf.sqrt(tf.linalg.diag_part(gram))
        ...         return 1 / (norms + 1e-8) / gram.shape[-1]
    """

    def coefficients(self, gram):
        """Returns the coefficients of the weighted sum.

        Args:
            gram: float64, shape ``[S, R, R]``: per segment the symmetric, positive semi-definite
                matrix of inner products. R is known statically.

        Returns:
            float64, shape ``[S, R]``. Where a segment of `gram` is not finite the coefficients have
            to make the result non-finite too: loss scaling relies on it.
        """
        raise NotImplementedError

    def get_config(self):
        """Returns the constructor's arguments, so that the rule can be saved."""
        return {}

    @classmethod
    def from_config(cls, config):
        """Returns a rule made from what `get_config` returned."""
        return cls(**config)

    def __repr__(self):
        """Returns the constructor's call."""
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"
