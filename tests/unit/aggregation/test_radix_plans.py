"""Which radix plans keep Adasum's tree, and which of them the cost model chooses."""

import itertools
import math
import operator

import pytest

from tf_adasum.aggregation import cost_model, radix_plans
from tf_adasum.aggregation.cost_model import CostModel, Hosts


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


def sent_to_other_hosts(groups, per_host):
    """The most members that a replica has on other hosts, and that the replicas of a host have."""
    of_replica, of_host = {}, {}
    for source, targets in groups.items():
        others = [each for each in targets if each // per_host != source // per_host]
        of_replica[source] = len(others)
        of_host[source // per_host] = of_host.get(source // per_host, 0) + len(others)
    return max(of_replica.values()), max(of_host.values())


def exchanged(plan, size, segments, per_host):
    """Messages of a replica to other hosts, and bytes that leave a host, counted one by one."""
    replicas, pieces = range(math.prod(plan)), max(1, round(size / 2**24))
    messages, sent, stride, own = 0, 0, 1, size
    for radix in plan:
        members, gram = stride * radix, 8 * segments * radix * (radix + 1) / 2
        first = {each: each - each // stride % radix * stride for each in replicas}
        column = {each: range(first[each], first[each] + members, stride) for each in replicas}
        blocks = [range(begin, begin + members) for begin in replicas[::members]]
        block = {each: blocks[each // members] for each in replicas}
        of_replica, of_host = sent_to_other_hosts(column, per_host)
        messages, sent = messages + 2 * pieces * of_replica, sent + 2 * of_host * own / radix
        of_replica, of_host = sent_to_other_hosts(block, per_host)
        if 0 < members * gram <= 2**20:
            messages, sent = messages + of_replica, sent + of_host * gram
        elif gram:
            messages, sent = messages + 2 * of_replica, sent + 2 * of_host * gram / members
        stride, own = members, own / radix
    return messages, sent


@pytest.mark.parametrize(
    ("replicas", "per_host"),
    [(4, 1), (4, 2), (8, 2), (8, 4), (8, 8), (12, 3), (12, 4), (12, 6), (16, 4), (24, 8), (24, 12)],
)
def test_what_leaves_a_host_is_counted(replicas, per_host):
    hosts, model = Hosts(per_host, 2.0, 3.0), CostModel(0, 0, 0)
    for plan in radix_plans.tree_plans(replicas):
        for size, segments in ((64, 1), (10**5, 7), (10**8, 1000), (10**5, 0)):
            wanted = exchanged(plan, size, segments, per_host)
            found = cost_model.amounts_between_hosts(plan, size, segments, per_host)
            assert found == pytest.approx(wanted)
            seconds = model.seconds(plan, size, segments, hosts)
            assert seconds == pytest.approx(2 * wanted[0] + 3 * wanted[1])


def test_a_gathered_bucket_goes_to_each_replica_of_the_other_hosts():
    model, hosts = CostModel(0, 0, 0), Hosts(4, 2.0, 3.0)
    assert model.gather_seconds(8, 10.0, hosts=hosts) == 4 * 2.0 + 3.0 * 4 * 4 * 10.0
    assert model.gather_seconds(8, 10.0) == 0


@pytest.mark.parametrize("size", [10**5, 10**6, 2**24])
@pytest.mark.parametrize(
    ("replicas", "per_host"), [(8, 4), (8, 2), (16, 8), (64, 8), (12, 6), (12, 3), (6, 3)]
)
@pytest.mark.parametrize("costs", [cost_model.DEFAULT, cost_model.UCX], ids=["TensorFlow", "UCX"])
def test_the_default_plan_follows_the_hosts(costs, replicas, per_host, size):
    """Up to 16 replicas, other plans than those are left out."""
    hosts = Hosts(per_host)
    plan = cost_model.default_plan(replicas, size, 10, default_costs=costs, hosts=hosts)
    if replicas <= 16:
        assert len(plan) == 1 or per_host in itertools.accumulate(plan, operator.mul)
    if size == 2**24 and per_host & (per_host - 1) == 0:
        assert hosts.are_followed_by(plan)
    assert cost_model.default_plan(16, size, 10, default_costs=costs) == (16,)
