"""AdaCons: gradients weighted by their consensus with the mean.

Shape legend: S segments (by default one, the whole model), R replicas.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_adasum import arguments, ops
from tf_adasum.aggregation.rules import granularity as granularities
from tf_adasum.aggregation.rules.base import AggregationRule, Granularity

EPSILON = 1e-8


@keras.saving.register_keras_serializable("tf_adasum")
class AdaCons(AggregationRule):
    """Adaptive consensus: the more a gradient agrees with the mean, the larger its weight.

    With ``ḡ = (1/R) Σ_j g_j`` and ε = 1e-8, each step computes:

        α_i = <g_i, ḡ> / (‖g_i‖ + ε)                  how far g_i points along the mean
        m ← β m + (1 - β) sort(α),  α_i ← m[rank of i]   subspace momentum
        α ← α / Σ_j α_j
        c_i = α_i / (‖g_i‖ + ε)

    The elements of m belong to ranks, not to replicas: m[0] belongs to the replica that agrees
    least with the mean in this step. In the first step, m is the sorted α. The momentum is the same
    on all replicas, and is saved with the optimizer.

    *The norm of the result.* The result is a sum of the unit vectors ``g_i / ‖g_i‖`` with the
    weights α_i, whose sum is 1. So its norm is of order 1 for any norm of the gradients. With
    ``rescale=True`` the result is multiplied by ``Σ_i α_i (‖g_i‖ + ε)``: identical gradients are
    returned unchanged, and you can keep the learning rate of one replica. With ``rescale=False``,
    as in the paper, you need another learning rate.

    If Σα consists only of rounding errors and ε, because the α cancel or all gradients are zero,
    every replica gets the same α. A negative Σα is not treated specially.

    Args:
        momentum: β, in [0, 1); 0 leaves α unchanged. Defaults to `0.99`.
        granularity: ``"model"``: each replica has one coefficient for all variables;
            ``"variable"``: one coefficient for each variable; ``{regular expression on variable
            paths: group}``: one coefficient for each group. Defaults to ``"model"``.
        rescale: whether the result has the norm of the gradients. Defaults to `True`.

    Raises:
        ValueError: if `momentum` is outside [0, 1), `granularity` has another form, or `rescale` is
            not a bool.

    Example:
        >>> rule = tf_adasum.rules.AdaCons()
        >>> identical = tf.fill([1, 4, 4], tf.constant(25.0, tf.float64))
        >>> rule.coefficients(identical).numpy().round(6)
        array([[0.25, 0.25, 0.25, 0.25]])

    Reference:
        Choukroun, Azoulay, Kisilev, "Adaptive Consensus Gradients Aggregation for Scaled
        Distributed Training", arXiv 2411.03742. `granularity`, `rescale` and the case Σα = 0 are
        ours. The authors' sample code indexes m by the sorting permutation; we use its inverse, the
        rank. For two replicas, both permutations are the same.
    """

    def __init__(
        self, momentum: float = 0.99, granularity: Granularity = "model", rescale: bool = True
    ):
        expected = "of AdaCons must be in [0, 1)"
        arguments.check_number("momentum", momentum, expected, at_least=0, below=1)
        arguments.check("rescale", rescale, isinstance(rescale, bool), "must be True or False")
        self.momentum = float(momentum)
        self.granularity = granularities.validated_granularity(granularity)
        self.rescale = rescale

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"momentum": self.momentum, "granularity": self.granularity, "rescale": self.rescale}

    def initial_state(self, segments: int, replicas: int) -> dict[str, np.ndarray]:
        """Return m, ``[S, R]``, and the number of steps taken, ``[S]``, both float64."""
        return {"momentum": np.zeros([segments, replicas]), "steps": np.zeros([segments])}

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return the coefficients in the first step; see `AggregationRule.coefficients`."""
        nothing = tf.zeros_like(gram[:, 0], tf.float64)
        return self.coefficients_and_state(gram, {"momentum": nothing, "steps": nothing[:, 0]})[0]

    def coefficients_and_state(
        self, gram: tf.Tensor, state: Mapping[str, tf.Tensor]
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Return coefficients and new state; see `AggregationRule.coefficients_and_state`."""
        gram_SRR = tf.convert_to_tensor(gram, tf.float64)
        norms_SR = tf.sqrt(tf.linalg.diag_part(gram_SRR)) + EPSILON
        alpha_SR = tf.reduce_mean(gram_SRR, axis=2) / norms_SR

        order_SR = tf.argsort(alpha_SR, stable=True)
        sorted_SR = tf.gather(alpha_SR, order_SR, batch_dims=1)
        beta_S1 = self.momentum * tf.cast(state["steps"] > 0, tf.float64)[:, None]
        momentum_SR = beta_S1 * state["momentum"] + (1 - beta_S1) * sorted_SR
        rank_SR = tf.argsort(order_SR)
        alpha_SR = tf.gather(momentum_SR, rank_SR, batch_dims=1)

        share_SR = _shares(alpha_SR, norms_SR, ops.gram_relative_error(gram_SRR))
        # In G, a node that is lost in rounding has norm 0. Its true norm can be larger than ε.
        is_zero_SR = tf.equal(tf.linalg.diag_part(gram_SRR), 0)
        c_SR = tf.where(is_zero_SR, tf.zeros_like(share_SR), share_SR / norms_SR)
        if self.rescale:
            c_SR *= tf.reduce_sum(share_SR * norms_SR, axis=1, keepdims=True)
        return c_SR, {"momentum": momentum_SR, "steps": state["steps"] + 1}


def _shares(alpha_SR: tf.Tensor, norms_SR: tf.Tensor, error: float) -> tf.Tensor:
    """Return ``α / Σα``, or equal shares if Σα is only the effect of the rounding of G and of ε."""
    total_S1 = tf.reduce_sum(alpha_SR, axis=1, keepdims=True)
    # ε changes α by α ε/‖g‖, which is less than 2 α ε/(‖g‖ + ε) if the norm of g is above ε.
    uncertain_SR = 8 * error * norms_SR + 2 * EPSILON * tf.abs(alpha_SR) / norms_SR
    is_lost_S1 = tf.abs(total_S1) <= tf.reduce_sum(uncertain_SR, axis=1, keepdims=True)
    equal = tf.ones_like(alpha_SR) / alpha_SR.shape[-1]
    return tf.where(
        is_lost_S1, equal, alpha_SR / tf.where(is_lost_S1, tf.ones_like(total_S1), total_S1)
    )
