"""The orthogonality of the gradients, computed from their Gram matrix.

Shape legend: V variables, S segments, R replicas, H groups of L neighbouring replicas, R = H·L.
"""

import tensorflow as tf

from tf_adasum.aggregation import rules


def measures(gram_SRR: tf.Tensor, local_reduction_size: int = 1) -> tf.Tensor:
    """Return ``cᵀGc`` with Adasum's coefficients c, ``trace(G)``, and ``1ᵀG1``, as ``[3, S]``.

    Args:
        gram_SRR: the Gram matrices of the replicas' gradients.
        local_reduction_size: L. If L is above 1, G is the Gram matrix of the H = R/L means of L
            neighbours. Defaults to `1`.
    """
    hosts = gram_SRR.shape[-1] // local_reduction_size
    blocks = tf.reshape(gram_SRR, [-1, hosts, local_reduction_size, hosts, local_reduction_size])
    gram_SHH = tf.reduce_mean(blocks, axis=[2, 4])
    c_SH = rules.Adasum().coefficients(gram_SHH)
    combined_S = tf.einsum("sh,shk,sk->s", c_SH, gram_SHH, c_SH)
    return tf.stack([combined_S, tf.linalg.trace(gram_SHH), tf.reduce_sum(gram_SHH, axis=[1, 2])])


def orthogonality(measures_3V: tf.Tensor) -> tf.Tensor:
    """Return ``‖adasum(g_1 … g_R)‖² / Σ_i ‖g_i‖²`` for each variable, and for all together.

    It is 1 if all gradients are orthogonal, 1/R if all are the same, less than 1/R if they point in
    opposite directions, and NaN if all are zero.

    Args:
        measures_3V: the `measures` of the variables.

    Returns:
        ``[V + 1]``; the last value is for all variables together.

    Reference:
        Maleki et al., MLSys 2021 (arXiv 2006.02924), "Orthogonality of Gradients".
    """
    of_all = tf.reduce_sum(measures_3V, axis=1, keepdims=True)
    combined, separate, _ = tf.unstack(tf.concat([measures_3V, of_all], axis=1))
    return combined / separate


def gram_terms(measures_3V: tf.Tensor, hosts: int) -> tf.Tensor:
    """Return the mean of the diagonal of G, and the mean of its other elements, as ``[2, V]``.

    They estimate the expected ``‖g‖²`` and ``‖μ‖²``. The second is zero if H is 1.

    Args:
        measures_3V: the `measures` of the variables.
        hosts: H.
    """
    _, trace_V, total_V = tf.unstack(measures_3V)
    return tf.stack([trace_V / hosts, (total_V - trace_V) / max(hosts * (hosts - 1), 1)])
