"""Adasum, evaluated on the Gram matrix: the tree never reads a gradient.

Shape legend: S segments (variables), R replicas, M nodes on one level of the tree, P pairs.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation.rules import granularity as granularities
from tf_adasum.aggregation.rules import nodes
from tf_adasum.aggregation.rules.base import AggregationRule, Granularity
from tf_adasum.ops.reference import pair_coefficients


@keras.saving.register_keras_serializable("tf_adasum")
class Adasum(AggregationRule):
    """Adaptive summation: orthogonal gradients are added, parallel gradients are averaged.

    ``adasum(a, b) = (1 - a·b / (2‖a‖²)) a + (1 - a·b / (2‖b‖²)) b``

    More than two replicas are combined in a tree: neighbours in rank order form pairs, then pairs
    of pairs, and so on. If a level of the tree has an odd number of nodes, its last node moves to
    the next level unchanged. If the number of replicas is a power of two, this is the published
    tree.

    Every node of the tree is a linear combination of the replicas' gradients. If p and q are the
    coefficient vectors of two nodes, their inner product is ``pᵀGq``, so the whole tree is computed
    from the R×R matrix G.

    The result of the published formula is bounded. Two guards keep this bound despite the rounding
    errors of G:

    * If the squared norm of a node is lost in the rounding of G, because its children nearly cancel
      (``pᵀGp < 8u |p|ᵀ|G||p|``; u is the relative error of G), the node counts as zero.
    * Every inner product is limited to the bound of the Cauchy–Schwarz inequality.

    Args:
        granularity: ``"variable"`` applies the rule to each variable separately, as the published
            implementation does; ``"model"`` applies it to all variables as one vector;
            ``{regular expression on variable paths: group}`` applies it to each group as one
            vector. Defaults to ``"variable"``.

    Raises:
        ValueError: if `granularity` has another form.

    Example:
        >>> rule = tf_adasum.rules.Adasum()
        >>> orthogonal = tf.eye(4, batch_shape=[1], dtype=tf.float64)
        >>> rule.coefficients(orthogonal).numpy()  # the sum
        array([[1., 1., 1., 1.]])
        >>> identical = tf.fill([1, 4, 4], tf.constant(25.0, tf.float64))
        >>> rule.coefficients(identical).numpy()  # the mean
        array([[0.25, 0.25, 0.25, 0.25]])

    Reference:
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021
        (arXiv 2006.02924), section 3. The evaluation on G and its guards are ours.
    """

    def __init__(self, granularity: Granularity = "variable"):
        self.granularity = granularities.validated_granularity(granularity)
        # A level handles one bucket at a time, but a group of variables can be in several buckets.
        self.works_in_levels = self.granularity == "variable"

    @property
    def is_tree_of_pairs(self) -> bool:
        """True, unless this is a subclass that computes other coefficients."""
        return self.computes_as(Adasum)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"granularity": self.granularity}

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return ``[S, R]``, float64; see `AggregationRule.coefficients`."""
        return _coefficients(gram, np.eye(gram.shape[-1]))


class AdasumOfNodes(Adasum):
    """Adasum's rule for nodes of its tree over V replicas. The rows of the Gram matrix are nodes.

    A node is placed where its first replica is, with zeros at the places of its other replicas.
    This gives the same tree, because ``adasum(a, 0) = a``.

    Args:
        first_replicas: for each row the number of the first replica in its node, or None if the row
            is zero. The nodes cover all V replicas.
        replicas: V.
        granularity: as for `Adasum`.
    """

    def __init__(
        self, first_replicas: Sequence[int | None], replicas: int, granularity: Granularity
    ):
        super().__init__(granularity)
        self.works_in_levels = False
        numbers = np.array([-1 if first is None else first for first in first_replicas])
        self._leaves_VR = (np.arange(replicas)[:, None] == numbers).astype(np.float64)

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return ``[S, R]``, float64; see `AggregationRule.coefficients`."""
        return _coefficients(gram, self._leaves_VR)


def _coefficients(gram: tf.Tensor, leaves_MR: np.ndarray) -> tf.Tensor:
    """Return the root of the tree over some leaves, which are linear combinations of the rows."""
    gram_SRR = tf.convert_to_tensor(gram, tf.float64)
    error = ops.gram_relative_error(gram_SRR)
    nodes_SMR = tf.broadcast_to(leaves_MR, [tf.shape(gram_SRR)[0], *leaves_MR.shape])
    while nodes_SMR.shape[1] > 1:
        even = nodes_SMR.shape[1] // 2 * 2
        combined_SPR = _combine_pairs(gram_SRR, nodes_SMR[:, :even], error)
        carried = nodes_SMR[:, even:]
        nodes_SMR = tf.concat([combined_SPR, carried], axis=1)
    finite_S = tf.reduce_all(tf.math.is_finite(gram_SRR), axis=[1, 2])
    not_a_number = tf.constant(np.nan, tf.float64)
    return tf.where(finite_S[:, None], nodes_SMR[:, 0], not_a_number)


def _combine_pairs(gram_SRR: tf.Tensor, nodes_SMR: tf.Tensor, error: float) -> tf.Tensor:
    """Return ``(1 - pq/(2pp)) p + (1 - pq/(2qq)) q`` for the P = M/2 pairs of neighbours.

    The two nodes of a pair are on an axis of size two, so that the same few operations compute both
    nodes of all pairs. In small exchanges, the time depends on the number of operations, and not on
    the arithmetic in them.
    """
    pairs_SP2R = tf.reshape(nodes_SMR, [-1, nodes_SMR.shape[1] // 2, 2, nodes_SMR.shape[2]])
    norms_SM = nodes.squared_norm(gram_SRR, nodes_SMR, error)
    norms_SP2 = tf.reshape(norms_SM, [-1, *pairs_SP2R.shape[1:3]])
    inner_SP = nodes.inner(gram_SRR, pairs_SP2R[:, :, 0], pairs_SP2R[:, :, 1])
    coefficients_SP2 = pair_coefficients(norms_SP2, inner_SP)
    return tf.reduce_sum(coefficients_SP2[..., None] * pairs_SP2R, axis=2)
