"""Combine buckets without packing: gradients are sent from their own memory.

If a transport can send gradients without packing, its groups have `fused` collectives, see
`transport.collectives.UcxCollectives`. The results have the same bits as with packed buckets,
because shards and segments are the same.

Shape legend: S segments (variables), R members of the group, W elements that a member combines.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.levels import ReduceScatterLevel
from tf_adasum.aggregation.rules import AggregationRule


@dataclasses.dataclass(frozen=True)
class FusedRows:
    """The data of the shards that a member combines.

    Attributes:
        gradients: this member's gradients, of the whole bucket and not only of the shards.
        received: the elements of the shards that the other members sent.
        gram: the inner products of the shards, ``[S, R, R]``.
    """

    gradients: Sequence[tf.Tensor]
    received: tf.Tensor
    gram: tf.Tensor

    @property
    def shape(self) -> tf.TensorShape:
        """The shape ``[R, W]`` that the rows would have as one tensor; W is unknown."""
        return tf.TensorShape([self.gram.shape[-1], None])


class FusedReduceScatterLevel(ReduceScatterLevel):
    """The only level of a plan whose bucket is not packed; see `ReduceScatterLevel`.

    Args:
        rule: the `AggregationRule`.
        group: the group of all replicas, whose `fused` collectives are used.
        width: the number of elements of a piece.
        computes_gram: whether to compute the inner products.
    """

    def __init__(
        self, rule: AggregationRule, group: CollectiveGroup, width: int, computes_gram: bool
    ):
        super().__init__(rule, group, group)
        self._fused, self._width, self._computes_gram = group.fused, width, computes_gram

    def scatter(self, vector: Any, segments: np.ndarray) -> tuple[Any, np.ndarray]:
        """Exchange the list of a bucket's gradients; return the `FusedRows`, and the segments."""
        gram_SRR, received = self._fused.scatter_gram(
            vector, segments, self._width, self._computes_gram
        )
        return FusedRows(vector, received, gram_SRR), segments

    def gram(self, rows: Any, segments: np.ndarray) -> tf.Tensor:
        """Return the inner products, which `scatter` has computed."""
        return rows.gram

    def combine(self, rows: Any, coefficients_SR: tf.Tensor, segments: np.ndarray) -> Any:
        """Return the list of whole combined gradients, joined from the shards of all members."""
        return self._fused.combine_gather(
            rows.gradients, rows.received, coefficients_SR, segments, self._width
        )

    def gather(self, combined: Any) -> Any:
        """Return the combined gradients, which every member already has."""
        return combined
