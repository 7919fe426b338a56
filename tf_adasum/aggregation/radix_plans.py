"""Radix plans: the sizes of the groups in which N replicas are combined, level by level.

``[N]`` is one level: every replica exchanges with all others. ``[2, 2, 2]`` is the paper's
recursive vector halving on eight replicas: pairs, pairs of pairs, and so on. The first level groups
neighbours.
"""

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tf_adasum.aggregation import buckets, groups
from tf_adasum.errors import see

# With more replicas on a level, the products of all pairs take longer than the collectives of
# several levels. Both constants come from benchmarks/simulate_clusters.py.
MOST_ON_ONE_LEVEL = 16
_MESSAGE_BYTES = 1 << 15


def validated_radix_plan(plan: Iterable[Any] | None, replicas: int) -> tuple[int, ...] | None:
    """Return the plan as a tuple of ints. None stays None, for `default_plan`.

    Args:
        plan: sequence of ints, 2 or more each, whose product is N; or None. If N is 1: ``[1]``.
        replicas: N.

    Raises:
        ValueError: if `plan` has another form, or another product.
    """
    if plan is None:
        return None
    try:
        radices = tuple(operator.index(radix) for radix in plan)
        is_exact = not any(isinstance(radix, bool) for radix in plan)
    except TypeError:
        radices, is_exact = (), False
    is_plan = all(radix > 1 for radix in radices) or radices == (1,)
    if not (radices and is_exact and is_plan and np.prod(radices) == replicas):
        raise ValueError(
            f"`radix_plan` must be None or a list of factors whose product is {replicas}, the "
            f"number of gradients that the rule combines, such as {list(tree_plans(replicas)[-1])}."
            f" Received: radix_plan={plan!r} {see('TFA-309')}"
        )
    return radices


def respects_tree(plan: Sequence[int]) -> bool:
    """Return whether the levels of a plan are levels of Adasum's tree of pairs.

    Example:
        >>> respects_tree([2, 3]), respects_tree([3, 2])
        (True, False)
    """
    return all(radix & (radix - 1) == 0 for radix in plan[:-1])


@functools.cache
def tree_plans(replicas: int) -> tuple[tuple[int, ...], ...]:
    """Return all plans for N replicas that respect Adasum's tree, those with few levels first.

    Example:
        >>> tree_plans(8)
        ((8,), (2, 4), (4, 2), (2, 2, 2))
    """
    if replicas == 1:
        return ((1,),)
    plans: list[tuple[int, ...]] = [(replicas,)]
    radix = 2
    while replicas % radix == 0 and radix < replicas:
        plans += [(radix, *rest) for rest in tree_plans(replicas // radix)]
        radix *= 2
    return tuple(sorted(plans, key=len))


@functools.cache
def default_plan(
    replicas: int, size: int, segments: int, replicas_per_host: int = 1
) -> tuple[int, ...]:
    """Return the plan of a bucket if the user has not chosen one: [N], or [L, H] on H hosts.

    If more than 16 replicas or hosts would be on one level, the plan is the one with the fewest
    messages whose levels have at most 16 members.

    Args:
        replicas: N.
        size: the size of the bucket in bytes.
        segments: the number of segments of the bucket; 0 for a rule without inner products.
        replicas_per_host: L. If L is not a power of two, a level of L would not respect Adasum's
            tree, and the hosts have no effect. Defaults to `1`.

    Example:
        >>> default_plan(16, 2**20, 10), default_plan(8, 2**20, 10, 4), default_plan(64, 2**20, 10)
        ((16,), (4, 2), (2, 4, 8))
    """
    within: tuple[int, ...] = ()
    if 1 < replicas_per_host < replicas and respects_tree((replicas_per_host, 1)):
        within = default_plan(replicas_per_host, size, segments)
    rest = replicas // math.prod(within)
    if rest <= MOST_ON_ONE_LEVEL:
        return (*within, rest)
    largest = max(MOST_ON_ONE_LEVEL, rest // (rest & -rest))  # the odd factor cannot be split
    plans = [(*within, *plan) for plan in tree_plans(rest) if max(plan) <= largest]
    return min(plans, key=lambda plan: _messages(plan, size, segments, replicas_per_host))


def _messages(plan: Sequence[int], size: int, segments: int, replicas_per_host: int) -> float:
    """Return the messages of a replica; `_MESSAGE_BYTES` of inner products count as a message.

    The bytes of the gradients do not count, because all plans that follow the hosts send equally
    many.
    """
    pieces = max(1, round(size / buckets.PIECE_BYTES))
    messages, members = 0.0, 1
    for radix in plan:
        members *= radix
        messages += 2 * pieces * radix  # an all-to-all and an all-gather
        gram = 8 * segments * radix * (radix + 1) // 2
        own, received = (2 * members, 2 * gram)  # a sum by an all-to-all and an all-gather
        if members * gram <= groups.GATHERED_SUM_BYTES:
            own, received = (members, members * gram)
        if gram:
            messages += own + replicas_per_host * received / _MESSAGE_BYTES
    return messages
