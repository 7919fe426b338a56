"""The orthogonality of the gradients, computed from their Gram matrix.

Shape legend: V variables, S segments, R replicas, H groups of L neighbouring replicas, R = H·L.
"""

import tensorflow as tf

from tf_adasum.aggregation import rules


def squared_norms(
    gram_SRR: tf.Tensor, local_reduction_size: int = 1
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ``cᵀGc`` and ``trace(G)``, each ``[S]``, with Adasum's coefficients c.

    Args:
        gram_SRR: the Gram matrices of the replicas' gradients.
        local_reduction_size: L. If L is above 1, G is the Gram matrix of the H = R/L means of L
            neighbours. Defaults to `1`.
    """
    gram_SHH = _gram_of_hosts(gram_SRR, local_reduction_size)
    c_SH = rules.Adasum().coefficients(gram_SHH)
    combined_S = tf.einsum("sh,shk,sk->s", c_SH, gram_SHH, c_SH)
    return combined_S, tf.linalg.trace(gram_SHH)


def gram_terms(gram_SRR: tf.Tensor, local_reduction_size: int = 1) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean of the diagonal of G, and the mean of its other elements, each ``[S]``.

    They estimate the expected ``‖g‖²`` and ``‖μ‖²``. The second is zero if H is 1.

    Args:
        gram_SRR: as for `squared_norms`, and so is `local_reduction_size`.
    """
    gram_SHH = _gram_of_hosts(gram_SRR, local_reduction_size)
    hosts = gram_SHH.shape[-1]
    trace_S = tf.linalg.trace(gram_SHH)
    others_S = tf.reduce_sum(gram_SHH, axis=[1, 2]) - trace_S
    return trace_S / hosts, others_S / max(hosts * (hosts - 1), 1)


def _gram_of_hosts(gram_SRR: tf.Tensor, local_reduction_size: int) -> tf.Tensor:
    hosts = gram_SRR.shape[-1] // local_reduction_size
    blocks = tf.reshape(gram_SRR, [-1, hosts, local_reduction_size, hosts, local_reduction_size])
    return tf.reduce_mean(blocks, axis=[2, 4])


def orthogonality(combined_V: tf.Tensor, separate_V: tf.Tensor) -> tf.Tensor:
    """Return ``‖adasum(g_1 … g_R)‖² / Σ_i ‖g_i‖²`` for each variable, and for all together.

    It is 1 if all gradients are orthogonal, 1/R if all are the same, less than 1/R if they point in
    opposite directions, and NaN if all are zero.

    Args:
        combined_V: the squared lengths of the combinations.
        separate_V: the sums of the squared lengths of the gradients.

    Returns:
        ``[V + 1]``; the last value is for all variables together.

    Reference:
        Maleki et al., MLSys 2021 (arXiv 2006.02924), "Orthogonality of Gradients".
    """
    combined, separate = (
        tf.concat([lengths, [tf.reduce_sum(lengths)]], axis=0)
        for lengths in (combined_V, separate_V)
    )
    return combined / separate
