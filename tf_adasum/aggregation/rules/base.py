"""What an aggregation rule is: a pure function from the Gram matrix to coefficients.

Shape legend: S segments (variables, or groups of them), R replicas.
"""


class AggregationRule:
    """Maps the Gram matrices of the replicas' gradients to the coefficients of their sum.

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

    Example:
        >>> class UnitNorm(AggregationRule):
        ...     def coefficients(self, gram):
        ...         norms = tf.sqrt(tf.linalg.diag_part(gram))
        ...         return 1 / (norms + 1e-8) / gram.shape[-1]
    """

    granularity = "variable"
    needs_gram = True
    works_in_levels = False

    def coefficients(self, gram):
        """Returns the coefficients of the weighted sum.

        Args:
            gram: float64, shape ``[S, R, R]``: per segment the symmetric, positive semi-definite
                matrix of inner products. R is known statically.

        Returns:
            Floating-point numbers, shape ``[S, R]``, finite where `gram` is. Where a segment of
            `gram` is not finite, its coefficients do not matter: the aggregated gradient becomes
            NaN, for loss scaling to see.
        """
        raise NotImplementedError(f"{type(self).__name__} must define coefficients(gram).")

    def initial_state(self, segments, replicas):
        """Returns what the rule remembers, before the first step.

        Args:
            segments: S, of the whole model.
            replicas: R.

        Returns:
            dict from names to NumPy arrays ``[S, ...]``; empty for a rule without state.
        """
        del segments, replicas
        return {}

    def coefficients_and_state(self, gram, state):
        """Returns the coefficients, and the state of the next step.

        Args:
            gram: as for `coefficients`.
            state: dict of tensors as made by `initial_state`, of these S segments.

        Returns:
            The coefficients ``[S, R]``, and a dict like `state`. The state of a segment whose
            `gram` is not finite stays as it was, whatever is returned.
        """
        return self.coefficients(gram), state

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
