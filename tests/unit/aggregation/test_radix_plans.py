"""Which radix plans keep Adasum's tree, and which of them the cost model chooses."""

import itertools
import math

import pytest

from tf_adasum.aggregation import radix_plans
from tf_adasum.aggregation.cost_model import CostModel


def tree(nodes):
    """Adasum's tree as nested tuples: neighbours are paired, an odd last one is carried."""
    nodes = list(nodes)
    while len(nodes) > 1:
        pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[2 * len(pairs) :]
    return nodes[0]


def tree_of(plan):
    """The tree of a plan, as nested tuples: on each level the trees of neighbours."""
    nodes = range(math.prod(plan))
    for radix in plan:
        nodes = [tree(nodes[i : i + radix]) for i in range(0, len(nodes), radix)]
    return nodes[0]


def all_plans(replicas):
    """All ordered factorizations, in no particular order."""
    yield (replicas,)
    for first in range(2, replicas):
        if replicas % first == 0:
            yield from ((first, *rest) for rest in all_plans(replicas // first))


@pytest.mark.parametrize("replicas", [*range(1, 33), 36, 40, 48, 64, 96])
def test_which_plans_respect_the_tree(replicas):
    own_tree = tree(range(replicas))
    respecting = [plan for plan in all_plans(replicas) if tree_of(plan) == own_tree]
    for plan in all_plans(replicas):
        assert radix_plans.respects_tree(plan) == (plan in respecting)
    found = radix_plans.tree_plans(replicas)
    assert len(set(found)) == len(found) and set(found) == set(respecting)
    assert [len(plan) for plan in found] == sorted(len(plan) for plan in found)


def seconds_by_the_docstring(model, plan, size, segments):
    """The formulas at the top of the module, level by level."""
    a, b, c = model.alpha, model.beta, model.gamma
    p = max(1, round(size / 2**24))
    seconds = 0
    for level, R in enumerate(plan):
        P = math.prod(plan[: level + 1])
        n = size / math.prod(plan[:level])
        g = 8 * segments * R * (R + 1) / 2
        is_gathered = P * g <= 2**20
        seconds += 2 * p * a + 2 * (R - 1) * (p * a + b * n / R)
        seconds += a + ((P - 1) * (a + b * g) if is_gathered else 2 * (P - 1) * (a + b * g / P))
        seconds += c * n * ((R + 1) / 2 + 1)
    return seconds


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64])
def test_the_best_plan_takes_least_time(replicas):
    own_tree = tree(range(replicas))
    plans = [plan for plan in all_plans(replicas) if tree_of(plan) == own_tree]
    for constants in itertools.product([0, 1e-5, 1e-3], [0, 1e-9], [0, 2e-10]):
        model = CostModel(*constants)
        for bucket in itertools.product([64, 10**5, 10**8], [1, 1000]):
            seconds = {plan: seconds_by_the_docstring(model, plan, *bucket) for plan in plans}
            for plan, wanted in seconds.items():
                assert model.seconds(plan, *bucket) == pytest.approx(wanted, rel=1e-12, abs=0)
            assert seconds[model.best(replicas, *bucket)] <= min(seconds.values()) * (1 + 1e-12)
