"""Combines gradients one after the other, in the tree in which `rules.Adasum` combines all of them.

The gradients of the virtual replicas ``first … first + count - 1`` arrive one by one. A *block* is
a node of the tree: the combination of 2^i gradients whose first number is a multiple of 2^i. As in
a binary counter, two neighbouring blocks of a level are combined as soon as both exist, so at most
log2(count) blocks wait for their right neighbour:

    number arrives      0       1       2       3       4       5
    blocks that wait    0       01      01 2    0123    0123 4  0123 45

A block whose left neighbour belongs to another device waits until the end. The blocks that are left
at the end are combined with the blocks of the other devices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_adasum import ops
from tf_adasum.aggregation import aggregate, sparse
from tf_adasum.aggregation.buckets import Gradient
from tf_adasum.aggregation.reduction_planner import LocalReductionPlanner
from tf_adasum.aggregation.rule_application import RuleApplication
from tf_adasum.aggregation.rules import AggregationRule
from tf_adasum.aggregation.scheme import Scheme

Node = Sequence[Gradient]  # a gradient for each variable
Combine = Callable[[Node, Node], list[Gradient]]


def blocks_of(first: int, count: int) -> list[tuple[int, int]]:
    """Return the level and the number of each block that is left of some neighbouring replicas.

    Example:
        >>> blocks_of(3, 6)  # the replicas 3, 4 to 7, 8
        [(0, 3), (2, 1), (0, 8)]
    """
    blocks, stop = [], first + count
    while first < stop:
        level = 0
        while first % (2 << level) == 0 and first + (2 << level) <= stop:
            level += 1
        blocks.append((level, first >> level))
        first += 1 << level
    return blocks


class Tree:
    """The partial results of Adasum's tree.

    Args:
        combine: function that combines two neighbouring nodes.
        first: the number of the first gradient.
        count: the number of gradients.

    Attributes:
        slots: the keys of the nodes that may have to be kept before the last gradient. A key is a
            level, and whether the node waits for its right neighbour.
    """

    def __init__(self, combine: Combine, first: int, count: int):
        self._combine, self._first, self._count = combine, first, count
        self.slots = sorted({self._slot(number) for number in range(first, first + count - 1)})

    def _slot(self, number: int) -> tuple[int, bool]:
        """Return where the block that gradient `number` completes is kept."""
        level, block = blocks_of(self._first, number + 1 - self._first)[-1]
        return level, block % 2 == 0

    def placed(self, node: Node, number: Any, nodes: Sequence[Node] | None) -> list[Node]:
        """Return the nodes of `slots` after a gradient has arrived.

        Args:
            node: the gradient.
            number: its number, int or scalar tensor.
            nodes: the nodes of `slots`, of which unused ones have any value; None before the first
                gradient.
        """
        if nodes is None:
            return [node] * len(self.slots)
        slots = [self._slot(each) for each in range(self._first, self._first + self._count - 1)]
        final_level = tf.constant([level for level, _ in slots])[number - self._first]
        place = tf.constant([self.slots.index(slot) for slot in slots])[number - self._first]
        for (level, waits), left in zip(self.slots, nodes, strict=True):
            if waits:
                node = _either(
                    level < final_level,
                    lambda left=left, node=node: self._combine(left, node),
                    lambda node=node: node,
                )
        return [
            _either(tf.equal(place, own), lambda: node, lambda kept=kept: kept)
            for own, kept in enumerate(nodes)
        ]

    def blocks(self, node: Node, nodes: Sequence[Node], is_all: bool) -> list[Node]:
        """Return the blocks that are left, in order, when the last gradient `node` has arrived.

        Args:
            node: the last gradient.
            nodes: as for `placed`.
            is_all: whether there is no other device, so that the blocks are combined to one node.
        """
        kept = dict(zip(self.slots, nodes, strict=True))
        before = blocks_of(self._first, self._count - 1)
        found = [*(kept[level, number % 2 == 0] for level, number in before), node]
        most = 1 if is_all else len(blocks_of(self._first, self._count))
        while len(found) > most:
            found[-2:] = [self._combine(*found[-2:])]
        return found


class RunningSum:
    """The partial result of a linear rule: the sum so far. It has the interface of `Tree`."""

    def placed(self, node: Node, number: Any, nodes: Sequence[Node] | None) -> list[Node]:
        """Return the new sum."""
        return [node if nodes is None else added(nodes[0], node)]

    def blocks(self, node: Node, nodes: Sequence[Node], is_all: bool) -> list[Node]:
        """Return the sum with the last gradient."""
        return self.placed(node, None, nodes)


def partial_results(
    rule: AggregationRule, groups: Sequence[int], first: int, count: int
) -> Tree | RunningSum:
    """Return the `Tree` or the `RunningSum` for a rule.

    Args:
        rule: Adasum, or a linear rule.
        groups: for each gradient, the number of its group of variables.
        first: the number of the first virtual replica.
        count: the number of virtual replicas, at least 2.
    """
    if not rule.is_tree_of_pairs:
        return RunningSum()
    planner = LocalReductionPlanner(Scheme(rule, 2))
    is_alone = len(set(groups)) == len(groups)

    def combine(left: Node, right: Node) -> list[Gradient]:
        if is_alone and not any(isinstance(each, tf.IndexedSlices) for each in left):
            return [ops.pairwise_combine(*pair) for pair in zip(left, right, strict=True)]
        return aggregate([left, right], planner, application=RuleApplication(groups))

    return Tree(combine, first, count)


def first_of_blocks(devices: int, count: int) -> list[int | None]:
    """Return the first replica of each block that is left, on all devices.

    All devices have equally many. None fills up those of a device with fewer blocks.

    Args:
        devices: the number of devices.
        count: the number of virtual replicas of each.
    """
    blocks = [blocks_of(device * count, count) for device in range(devices)]
    firsts = [[number << level for level, number in own] for own in blocks]
    most = max(map(len, firsts))
    return [first for own in firsts for first in [*own, *[None] * (most - len(own))]]


def added(left: Node, right: Node) -> list[Gradient]:
    """Add gradients. The slices of sparse gradients are joined, see `sparse.joined`."""
    return [
        _joined(*pair) if isinstance(pair[0], tf.IndexedSlices) else pair[0] + pair[1]
        for pair in zip(left, right, strict=True)
    ]


def _joined(a: tf.IndexedSlices, b: tf.IndexedSlices) -> tf.IndexedSlices:
    indices, values = sparse.joined([(a.indices, a.values), (b.indices, b.values)])
    return tf.IndexedSlices(values, indices, b.dense_shape)


def _either(predicate: tf.Tensor, then: Callable, otherwise: Callable) -> Node:
    """Return the result of one of two functions, which return nodes, as `tf.cond` does."""
    return tf.cond(predicate, lambda: list(then()), lambda: list(otherwise()))
