"""Several levels of rules, evaluated on one Gram matrix.

Shape legend: S segments, R replicas, M nodes on one level, K nodes in a group, so M/K groups of
nodes in each segment.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation.rules import nodes
from tf_adasum.aggregation.rules.base import AggregationRule
from tf_adasum.aggregation.rules.checks import checked_coefficients


class Nested(AggregationRule):
    """A rule for several levels: it combines neighbours, then these combinations, and so on.

    A radix plan combines shards of vectors, level by level. This rule computes the coefficients of
    the same result, up to rounding, from the Gram matrix of all replicas.

    Args:
        levels: list of ``(radix, rule)``. The first level combines neighbours. The product of all
            radices is R. Only the last rule may have a state.

    Example:
        >>> rule = Nested([(2, tf_adasum.rules.Mean()), (2, tf_adasum.rules.Sum())])
        >>> rule.coefficients(tf.eye(4, batch_shape=[1], dtype=tf.float64)).numpy()
        array([[0.5, 0.5, 0.5, 0.5]])
    """

    def __init__(self, levels: Sequence[tuple[int, AggregationRule]]):
        self.levels = list(levels)
        *self._lower, (_, self._last) = self.levels
        self.granularity = self._last.granularity
        self.needs_gram = any(rule.needs_gram for _, rule in levels)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"levels": self.levels}

    def initial_state(self, segments: int, replicas: int) -> dict[str, np.ndarray]:
        """Return the state of the last rule."""
        radix, rule = self.levels[-1]
        return rule.initial_state(segments, radix)

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return ``[S, R]``, float64; see `AggregationRule.coefficients`."""
        return self._through_the_levels(gram, self._last.coefficients)

    def coefficients_and_state(
        self, gram: tf.Tensor, state: Mapping[str, tf.Tensor]
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        """Return ``[S, R]`` and the last rule's state."""
        new_state = state

        def last(gram: tf.Tensor) -> tf.Tensor:
            nonlocal new_state
            coefficients, new_state = self._last.coefficients_and_state(gram, state)
            return coefficients

        return self._through_the_levels(gram, last), new_state

    def _through_the_levels(
        self, gram: tf.Tensor, last: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        gram_SRR = tf.convert_to_tensor(gram, tf.float64)
        nodes_SMR = tf.eye(gram_SRR.shape[-1], batch_shape=tf.shape(gram_SRR)[:1], dtype=tf.float64)
        for radix, rule in self._lower:
            nodes_SMR = _combine_groups(gram_SRR, nodes_SMR, radix, rule, rule.coefficients)
        radix, rule = self.levels[-1]
        return _combine_groups(gram_SRR, nodes_SMR, radix, rule, last)[:, 0]


def _combine_groups(
    gram_SRR: tf.Tensor,
    nodes_SMR: tf.Tensor,
    radix: int,
    rule: AggregationRule,
    coefficients: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Compute one level: combine each group of `radix` neighbouring nodes into one node."""
    count, replicas = nodes_SMR.shape[1:]
    error = ops.gram_relative_error(gram_SRR)
    gram_SMM = nodes.gram_of(gram_SRR, nodes_SMR, error)
    blocks = [
        gram_SMM[:, start : start + radix, start : start + radix]
        for start in range(0, count, radix)
    ]
    gram_GKK = tf.reshape(tf.stack(blocks, axis=1), [-1, radix, radix])
    c_GK = checked_coefficients(rule, coefficients(gram_GKK), gram_GKK)
    c_SGK = tf.reshape(c_GK, [-1, count // radix, radix])
    nodes_SGKR = tf.reshape(nodes_SMR, [-1, count // radix, radix, replicas])
    return tf.reduce_sum(c_SGK[..., None] * nodes_SGKR, axis=2)


def nested(levels: Sequence[tuple[int, AggregationRule]]) -> AggregationRule:
    """Return one rule that computes all levels; one tree of pairs needs no `Nested`.

    In a tree of pairs, such as Adasum's, two consecutive levels equal one level whose radix is the
    product of their radices, if the radix of the first level is a power of two. So such levels are
    merged. If one level remains, its rule is returned, otherwise a `Nested` rule.

    Example:
        >>> nested([(2, tf_adasum.rules.Adasum()), (3, tf_adasum.rules.Adasum())])
        Adasum(granularity='variable')
    """
    merged: list[tuple[int, AggregationRule]] = []
    for radix, rule in levels:
        if merged:
            below, same = merged[-1]
            is_power_of_two = below & (below - 1) == 0
            if rule.is_tree_of_pairs and same.is_tree_of_pairs and is_power_of_two:
                merged[-1] = (below * radix, rule)
                continue
        merged.append((radix, rule))
    return merged[0][1] if len(merged) == 1 else Nested(merged)
