"""Combines the rows of all replicas into one row, with the package's own rules and operations.

Shape legend: S segments (variables), N replicas, n weights.
"""

import tensorflow as tf

from tf_adasum import ops, rules
from tf_adasum.aggregation.rules.nested import nested


def over_hosts(replicas, hosts):
    """Return Adasum of the replicas of each host, and then of the hosts."""
    return nested([(replicas, rules.Adasum()), (hosts, rules.Adasum())])


class AdasumInRingOrder(rules.Adasum):
    """Adasum along a ring: ``adasum(… adasum(adasum(g_0, g_1), g_2) …, g_N-1)``, with no tree."""

    def coefficients(self, gram):
        """Return ``[S, N]``, from the Gram matrices ``[S, N, N]``."""
        replicas = gram.shape[-1]
        own_SNN = tf.eye(replicas, batch_shape=tf.shape(gram)[:1], dtype=tf.float64)
        combined_S1N = own_SNN[:, :1]
        for replica in range(1, replicas):
            pair_S2N = tf.concat([combined_S1N, own_SNN[:, replica : replica + 1]], axis=1)
            gram_S22 = pair_S2N @ tf.matmul(gram, pair_S2N, transpose_b=True)
            combined_S1N = super().coefficients(gram_S22)[:, None] @ pair_S2N
        return combined_S1N[:, 0]


RULES = {
    "mean": rules.Mean,
    "sum": rules.Sum,
    "adasum": rules.Adasum,
    "adasum of the model": lambda: rules.Adasum("model"),
    "adasum in ring order": AdasumInRingOrder,
    "adasum over 8 hosts of 3": lambda: over_hosts(3, 8),
    "adasum over 4 hosts of 6": lambda: over_hosts(6, 4),
    "adacons": lambda: rules.AdaCons(rescale=True),
}


class Combination:
    """A rule on rows ``[N, n]``.

    Args:
        rule: one of `RULES`.
        replicas: N.
        offsets: ``[V + 1]``, where each variable begins, and n.
    """

    def __init__(self, rule, replicas, offsets):
        self.rule = RULES[rule]()
        offsets = list(offsets)
        self.segments = offsets if self.rule.granularity == "variable" else [0, offsets[-1]]
        self.replicas = replicas

    def initial_state(self):
        """Return the state of the rule before the first step."""
        state = self.rule.initial_state(len(self.segments) - 1, self.replicas)
        return {name: tf.constant(value) for name, value in state.items()}

    def __call__(self, rows_Nn, state):
        """Return the combined row ``[n]``, and the rule's next state."""
        if self.replicas == 1:
            return rows_Nn[0], state
        if isinstance(self.rule, rules.Sum):
            return tf.reduce_sum(rows_Nn, axis=0), state
        if isinstance(self.rule, rules.Mean):
            return tf.reduce_mean(rows_Nn, axis=0), state
        gram = ops.segment_gram(rows_Nn, self.segments)
        coefficients, state = self.rule.coefficients_and_state(gram, state)
        return ops.segment_weighted_sum(rows_Nn, coefficients, self.segments), state
