"""Which radix plans keep Adasum's tree, and which of them is the default."""

import math

import pytest

from tf_adasum.aggregation import radix_plans


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


def messages_of(plan, size, segments, per_host):
    """Counted one by one: each replica's messages, and 32 KiB of inner products as one more."""
    messages, pieces = 0, max(1, round(size / 2**24))
    for level, radix in enumerate(plan):
        members = math.prod(plan[: level + 1])
        for _ in range(pieces):
            messages += radix + radix
        gram = sum(8 for _ in range(segments) for a in range(radix) for b in range(a + 1))
        is_gathered = members * gram <= 2**20
        if gram:
            messages += members if is_gathered else members + members
            messages += per_host * (members if is_gathered else 2) * gram / 2**15
    return messages


@pytest.mark.parametrize("bucket", [(64, 1), (10**6, 0), (10**7, 27), (10**7, 160), (10**8, 2)])
@pytest.mark.parametrize(
    ("replicas", "per_host"), [(18, 1), (32, 1), (34, 1), (48, 1), (128, 1), (24, 12), (256, 8)]
)
def test_with_more_the_fewest_messages_decide(replicas, per_host, bucket):
    own_tree = tree(range(replicas))
    plan = radix_plans.default_plan(replicas, *bucket, per_host)
    follows = per_host & (per_host - 1) == 0 and per_host > 1
    within = (per_host,) if follows else ()
    candidates = [
        each
        for each in all_plans(replicas)
        if max(each) <= max(16, 17 * (replicas == 34)) and tree_of(each) == own_tree
        if each[: len(within)] == within
    ]
    assert plan in candidates
    fewest = min(messages_of(each, *bucket, per_host) for each in candidates)
    assert messages_of(plan, *bucket, per_host) == pytest.approx(fewest)
