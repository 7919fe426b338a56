"""Combines the rows of all replicas into one row, with the package's own rules and operations.

Shape legend: S segments (variables), N replicas, n weights.
"""

import tensorflow as tf

from tf_adasum import ops, rules

RULES = {
    "mean": rules.Mean,
    "sum": rules.Sum,
    "adasum": rules.Adasum,
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
