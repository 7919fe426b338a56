"""Nodes: linear combinations of the replicas' gradients, computed from the Gram matrix.

If p and q are the coefficients of two nodes, the inner product of the nodes is ``pᵀGq``. So whole
trees of combinations are computed without reading a gradient.

Shape legend: S segments (variables), R replicas, P nodes.
"""

import tensorflow as tf


def inner(gram_SRR: tf.Tensor, p_SPR: tf.Tensor, q_SPR: tf.Tensor) -> tf.Tensor:
    """Return ``pᵀGq`` for P pairs of nodes, shape ``[S, P]``."""
    return tf.reduce_sum(tf.matmul(p_SPR, gram_SRR) * q_SPR, axis=-1)


def squared_norm(gram_SRR: tf.Tensor, p_SPR: tf.Tensor, error: float) -> tf.Tensor:
    """Return ``pᵀGp``, shape ``[S, P]``; a value that is only a rounding error of G becomes zero.

    Args:
        gram_SRR: the Gram matrices.
        p_SPR: the nodes.
        error: u, the relative error of G; a value below ``8u |p|ᵀ|G||p|`` is a rounding error.
    """
    squared = inner(gram_SRR, p_SPR, p_SPR)
    magnitude = inner(tf.abs(gram_SRR), tf.abs(p_SPR), tf.abs(p_SPR))
    return tf.where(squared < 8 * error * magnitude, tf.zeros_like(squared), squared)


def gram_of(gram_SRR: tf.Tensor, nodes_SPR: tf.Tensor, error: float) -> tf.Tensor:
    """Return the Gram matrix of the nodes, ``[S, P, P]``.

    The row and the column of a node are exactly zero if its squared norm is lost in rounding.
    """
    gram_SPP = tf.matmul(tf.matmul(nodes_SPR, gram_SRR), nodes_SPR, transpose_b=True)
    is_lost_SP = tf.equal(squared_norm(gram_SRR, nodes_SPR, error), 0)
    is_lost_SPP = tf.logical_or(is_lost_SP[:, :, None], is_lost_SP[:, None, :])
    return tf.where(is_lost_SPP, tf.zeros_like(gram_SPP), gram_SPP)
