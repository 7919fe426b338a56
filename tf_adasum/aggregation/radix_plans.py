"""Radix plans: the sizes of the groups in which N replicas are combined, level by level.

``[N]`` is one level: every replica exchanges with all others. ``[2, 2, 2]`` is the paper's
recursive vector halving on eight replicas: pairs, pairs of pairs, and so on. The first level groups
neighbours.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tf_adasum.errors import see


def validated_radix_plan(plan: Iterable[Any] | None, replicas: int) -> tuple[int, ...] | None:
    """Return the plan as a tuple of ints. None stays None, so that the cost model chooses a plan.

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
