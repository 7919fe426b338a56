"""Scheme, radix plans and the cost model: what the user may choose, and what is chosen for them."""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.aggregation import Scheme, buckets, cost_model, radix_plans, rules
from tf_adasum.aggregation.cost_model import CostModel
from tf_adasum.aggregation.exchange import CollectiveExchange, LocalExchange, PairwisePlan
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.rules.nested import nested

AdaCons, Adasum, Mean, Sum = rules.AdaCons, rules.Adasum, rules.Mean, rules.Sum


class Returns(rules.AggregationRule):
    """Returns what a function makes of the Gram matrices."""

    def __init__(self, function):
        self._function = function

    def coefficients(self, gram):
        return self._function(gram)

    def __repr__(self):
        return "Returns()"


@pytest.fixture(autouse=True)
def default_costs(monkeypatch):
    monkeypatch.delenv(cost_model.VARIABLE, raising=False)


# ---- radix plans -------------------------------------------------------------------------------


def tree(nodes):
    """Adasum's tree as nested tuples: neighbours are paired, an odd last one is carried."""
    nodes = list(nodes)
    while len(nodes) > 1:
        pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[2 * len(pairs) :]
    return nodes[0]


def tree_of(plan):
    """What a plan combines, as nested tuples: on each level the trees of neighbours."""
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


REPLICA_COUNTS = [*range(1, 33), 36, 40, 48, 64, 96]


def test_trees_by_hand():
    assert tree(range(5)) == (((0, 1), (2, 3)), 4)
    assert tree_of([2, 3]) == tree(range(6)) == (((0, 1), (2, 3)), (4, 5))
    assert tree_of([3, 2]) == (((0, 1), 2), ((3, 4), 5))
    assert sorted(all_plans(12)) == [
        (2, 2, 3), (2, 3, 2), (2, 6), (3, 2, 2), (3, 4), (4, 3), (6, 2), (12,)
    ]  # fmt: skip


@pytest.mark.parametrize("replicas", REPLICA_COUNTS)
def test_which_plans_respect_the_tree(replicas):
    own_tree = tree(range(replicas))
    respecting = [plan for plan in all_plans(replicas) if tree_of(plan) == own_tree]
    for plan in all_plans(replicas):
        assert radix_plans.respects_tree(plan) == (plan in respecting)
    found = radix_plans.tree_plans(replicas)
    assert len(set(found)) == len(found) and set(found) == set(respecting)
    assert [len(plan) for plan in found] == sorted(len(plan) for plan in found)
    assert found[0] == (replicas,)


# ---- Scheme.checked: the plan ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (None, None),
        ([4], (4,)),
        ((2, 2), (2, 2)),
        (np.array([2, 2]), (2, 2)),
        ([np.int64(4)], (4,)),
        (range(4, 5), (4,)),
    ],
    ids=str,
)
def test_good_plans(plan, expected):
    scheme = Scheme.checked(Adasum(), 4, radix_plan=plan)
    assert scheme.radix_plan == expected
    assert all(type(radix) is int for radix in scheme.radix_plan or ())
    json.dumps(scheme.terms())


def test_the_plan_of_one_replica():
    assert Scheme.checked(Adasum(), 1, radix_plan=[1]).radix_plan == (1,)


@pytest.mark.parametrize(
    "plan",
    [
        [], [2], [3], [8], [2, 3], [2, 2, 2], [4, 1], [1, 4], [-2, -2], [0], [2.5], [np.nan],
        "22", "4", 4, 4.0, True, [[4]], [None], ["4"], {"a": 4}, np.array([[2, 2]]),
    ],
    ids=str,
)  # fmt: skip
def test_refuses_plans(plan):
    with pytest.raises(ValueError, match=r"`radix_plan` must be .* product is 4,") as caught:
        Scheme.checked(Adasum(), 4, radix_plan=plan)
    assert f"Received: radix_plan={plan!r}" in str(caught.value)


@pytest.mark.parametrize(("plan", "replicas"), [([2.0, 2.0], 4), ([True], 1)])
def test_refuses_radices_that_are_no_ints(plan, replicas):
    with pytest.raises(ValueError, match="`radix_plan` must be"):
        Scheme.checked(Adasum(), replicas, radix_plan=plan)


@pytest.mark.parametrize(
    "rule",
    [AdaCons(), Adasum("model"), Adasum({".*": "all"}), Returns(lambda gram: gram[:, 0, :])],
    ids=repr,
)
def test_rules_that_need_all_gradients_take_one_level(rule):
    assert Scheme.checked(rule, 4, radix_plan=[4]).radix_plan == (4,)
    assert Scheme.checked(rule, 8, averaged=2, radix_plan=[4]).radix_plan == (4,)
    with pytest.raises(ValueError) as caught:
        Scheme.checked(rule, 8, averaged=2, radix_plan=(2, 2))
    message = str(caught.value)
    assert f"`radix_plan` must be None or [4] with {rule!r}" in message
    assert "Received: radix_plan=[2, 2]" in message


def test_the_plan_is_one_of_the_means():
    assert Scheme.checked(Adasum(), 12, averaged=2, radix_plan=[2, 3]).radix_plan == (2, 3)
    with pytest.raises(ValueError, match="product is 6"):
        Scheme.checked(Adasum(), 12, averaged=2, radix_plan=[4, 3])


# ---- Scheme.checked: the rest ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire_dtype", "expected"),
    [
        (None, None),
        ("bfloat16", tf.bfloat16),
        ("float16", tf.float16),
        (tf.bfloat16, tf.bfloat16),
        (tf.float16, tf.float16),
    ],
)
def test_good_wire_dtypes(wire_dtype, expected):
    scheme = Scheme.checked(Adasum(), 4, wire_dtype=wire_dtype)
    assert scheme.wire_dtype == expected
    assert scheme.terms()["wire_dtype"] == (expected and expected.name)


@pytest.mark.parametrize("wrong", ["float32", "int8", "", "bf16", 3, tf.float32, tf.int8, True, 0])
def test_refuses_wire_dtypes(wrong):
    with pytest.raises(ValueError, match="`wire_dtype` must be 'bfloat16', 'float16' or") as caught:
        Scheme.checked(Adasum(), 4, wire_dtype=wrong)
    assert f"Received: wire_dtype={wrong!r}" in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"wire_dtype": "float16"}, {"radix_plan": [2, 2]}, {"averaged": 2}], ids=str
)
def test_mean_is_tensorflows_own(options):
    with pytest.raises(ValueError, match="has no `radix_plan`, `local_reduction` or"):
        Scheme.checked(Mean(), 4, **options)
    assert Scheme.checked(Sum(), 4, **options)
    assert Scheme.checked(Mean(), 4, radix_plan=[4]).radix_plan == (4,)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda gram: gram, r"Received: shape \(5, 4, 4\)"),
        (lambda gram: gram[:, 0, :3], r"Received: shape \(5, 3\)"),
        (lambda gram: gram[0], r"Received: shape \(4, 4\)"),
        (lambda gram: tf.cast(gram[:, 0], tf.int32), "Received: dtype int32"),
        (lambda gram: 1.0, r"Received: shape \(\)"),
        (lambda gram: None, "Received: "),
    ],
)
def test_refuses_what_a_users_rule_returns(function, message):
    expected = r"The rule Returns\(\) must return .* \[S, R\] = \(5, 4\).*"
    with pytest.raises(ValueError, match=expected + message):
        Scheme.checked(Returns(function), 8, averaged=2)


def test_takes_users_rules():
    for function in (
        lambda gram: tf.linalg.diag_part(gram),
        lambda gram: tf.cast(gram[:, 0, :], tf.float32),
        lambda gram: [[0.25] * 4] * gram.shape[0],
    ):
        rule = Returns(function)
        scheme = Scheme.checked(rule, 4)
        assert scheme.rule is rule
        scheme.probe_values()


def test_values_of_users_rules_are_probed():
    for function in (
        lambda gram: 1 / gram[:, 0, :],
        lambda gram: np.nan * gram[:, 0, :],
        # Fine for one group, and not for the next one.
        lambda gram: gram[:, 0, :] / tf.constant([[1.0]] * 4 + [[0.0]], tf.float64),
    ):
        scheme = Scheme.checked(Returns(function), 8, averaged=2)
        with pytest.raises(ValueError, match=r"Returns\(\) returned coefficients that are not fin"):
            scheme.probe_values()
    Scheme.checked(Adasum(), 8).probe_values()


DEVICES_AFTER_THE_CHECK = """
import tensorflow as tf
from tensorflow.python.eager import context
from tf_adasum import rules
from tf_adasum.aggregation import Scheme

class Norms(rules.AggregationRule):
    def coefficients(self, gram):
        return tf.cast(1 / tf.sqrt(tf.linalg.diag_part(gram)), tf.float32)

for rule in (Norms(), rules.Adasum("model"), rules.AdaCons()):
    Scheme.checked(rule, 8, averaged=2, radix_plan=[4], wire_dtype="bfloat16")
assert not context.context()._initialized
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
print(len(tf.config.list_logical_devices("CPU")), "devices")
"""


def test_the_check_leaves_the_devices_to_be_configured():
    """In a process of its own: TensorFlow makes its devices once, for the first operation."""
    run = subprocess.run(
        [sys.executable, "-c", DEVICES_AFTER_THE_CHECK],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[-2] == "3 devices"


def test_terms_tell_schemes_apart(monkeypatch):
    schemes = [
        Scheme.checked(Adasum(), 8),
        Scheme.checked(Adasum("model"), 8),
        Scheme.checked(AdaCons(), 8),
        Scheme.checked(AdaCons(0.5), 8),
        Scheme.checked(Adasum(), 8, radix_plan=[8]),
        Scheme.checked(Adasum(), 8, radix_plan=[2, 4]),
        Scheme.checked(Adasum(), 8, averaged=2),
        Scheme.checked(Adasum(), 8, wire_dtype="float16"),
        Scheme.checked(Adasum(), 8, wire_dtype="bfloat16"),
    ]
    monkeypatch.setenv(cost_model.VARIABLE, "alpha=1,beta=1,gamma=1")
    schemes.append(Scheme.checked(Adasum(), 8))
    for one, other in itertools.combinations([json.dumps(own.terms()) for own in schemes], 2):
        assert one != other
    again = Scheme.checked(Adasum(), 8)
    assert again.terms() == schemes[-1].terms()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "Adasum(granularity='variable')"),
        ({"radix_plan": [2, 2, 3]}, "Adasum(granularity='variable')"),
        ({"radix_plan": [3, 4]}, [(3, Adasum), (4, Adasum)]),
        ({"averaged": 2}, [(2, Mean), (6, Adasum)]),
        ({"averaged": 2, "radix_plan": [3, 2]}, [(2, Mean), (3, Adasum), (2, Adasum)]),
        ({"averaged": 12}, [(12, Mean), (1, Adasum)]),
    ],
    ids=str,
)
def test_whole_rule(options, expected):
    rule = Scheme.checked(Adasum(), 12, **options).whole_rule
    if isinstance(expected, str):
        assert repr(rule) == expected
    else:
        assert [(radix, type(own)) for radix, own in rule.levels] == expected


# ---- the cost model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "size", "segments", "expected"),
    [
        # Two collectives of 3 messages, each of 1000/4 bytes; one for 3 matrices of 10 numbers,
        # which are gathered; (4 + 1)/2 products and one sum. A collective more is a message more.
        ([4], 1000, 3, ((3 + 3 + 3) + 3, 6 * 250 + 3 * 240, 1000 * 3.5)),
        # Of 1000 bytes 2 of 500, of the half that is left 2 of 250; matrices of 3 numbers, gathered
        # from 2 and from 4; 1.5 products and one sum.
        (
            [2, 2],
            1000,
            3,
            ((1 + 1 + 1) + 3 + (1 + 1 + 3) + 3, 1000 + 72 + 500 + 3 * 72, 1000 * 2.5 + 500 * 2.5),
        ),
        # 800 kB of inner products on each of four: by a ring, in 2·3 quarters.
        ([4], 1000, 10**4, ((3 + 3 + 6) + 3, 6 * 250 + 6 * 200_000, 1000 * 3.5)),
        # Three pieces of 16 MiB, and one matrix of 3 numbers.
        ([2], 3 * 2**24, 1, (3 * (1 + 1 + 2) + 1 + 1, 3 * 2**24 + 24, 3 * 2**24 * 2.5)),
    ],
    ids=str,
)
def test_amounts_by_hand(plan, size, segments, expected):
    assert cost_model.amounts(plan, size, segments) == expected
    model = CostModel(alpha=2.0, beta=0.25, gamma=0.5)
    seconds = 2 * expected[0] + 0.25 * expected[1] + 0.5 * expected[2]
    assert model.seconds(plan, size, segments) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("replicas", REPLICA_COUNTS)
def test_every_plan_sends_the_bytes_of_a_ring_all_reduce(replicas):
    size = 12345
    for plan in all_plans(replicas):
        _, sent, _ = cost_model.amounts(plan, size, segments=0)
        # Rounding of a few sums and products.
        assert sent == pytest.approx(2 * size * (replicas - 1) / replicas, rel=1e-14)


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
    best = set()
    for alpha, beta, gamma in itertools.product([0, 1e-5, 1e-3], [0, 1e-9], [0, 2e-10]):
        model = CostModel(alpha, beta, gamma)
        for size, segments in itertools.product([64, 10**5, 10**8], [1, 1000]):
            found = model.best(replicas, size, segments)
            assert found in plans
            seconds = [seconds_by_the_docstring(model, plan, size, segments) for plan in plans]
            own = seconds_by_the_docstring(model, found, size, segments)
            assert own == pytest.approx(model.seconds(found, size, segments), rel=1e-12, abs=0)
            assert own <= min(seconds) * (1 + 1e-12)
            best.add(found)
    assert len(best) > 1 or len(plans) == 1, "the choice depends on the model"


# ---- the default plan --------------------------------------------------------------------------

BUCKETS = [(64, 1), (2**20, 50), (2**24, 160), (10**8, 1)]  # bytes, variables
FAST_LEVELS = CostModel(alpha=0.0, beta=0.0, gamma=1.0)  # products only


@pytest.mark.parametrize("replicas", range(1, 17))
def test_up_to_16_replicas_the_default_is_one_level(replicas):
    for bucket in BUCKETS:
        assert cost_model.default_plan(replicas, *bucket) == (replicas,)


@pytest.mark.parametrize("replicas", [17, 18, 24, 32, 64, 96])
def test_beyond_the_shipped_constants_choose(replicas):
    plans = [cost_model.default_plan(replicas, *bucket) for bucket in BUCKETS]
    assert plans == [cost_model.DEFAULT.best(replicas, *bucket) for bucket in BUCKETS]
    assert (replicas == 17) == (set(plans) == {(replicas,)}), "17 is a prime number"


@pytest.mark.parametrize("replicas", [2, 4, 6, 8, 16, 32])
def test_measured_constants_choose_everywhere(replicas):
    for bucket in BUCKETS:
        plan = cost_model.default_plan(replicas, *bucket, costs=FAST_LEVELS)
        assert plan == FAST_LEVELS.best(replicas, *bucket)
        assert (len(plan) > 1) == (replicas > 4)


def levels_of(scheme, **arguments):
    """The rules and radices of the levels on which a bucket of 1 MiB is combined."""
    members = []

    def group_of(stride, radix):
        members.append((stride, radix))
        return CollectiveGroup(None, range(radix), 0)

    bucket = buckets.Bucket.of([0], [tf.TensorSpec([2**18], tf.float32)])
    plan = CollectiveExchange(scheme, group_of, **arguments).plan(bucket, is_whole=False)
    return [level.rule for level in plan.levels], [radix for _, radix in members[::2]]


@pytest.mark.parametrize(
    ("replicas", "averaged", "radices"),
    [(8, 1, [8]), (16, 1, [16]), (32, 1, [4, 8]), (32, 2, [2, 16]), (64, 2, [2, 4, 8])],
)
def test_exchanges_take_the_default_plan_of_what_the_rule_combines(replicas, averaged, radices):
    scheme = Scheme.checked(Adasum(), replicas, averaged=averaged)
    assert levels_of(scheme)[1] == radices


def test_exchanges_take_the_plan_that_measured_constants_choose(monkeypatch):
    monkeypatch.setenv(cost_model.VARIABLE, "alpha=0,beta=0,gamma=1")
    assert levels_of(Scheme.checked(Adasum(), 8))[1] == [4, 2]
    assert levels_of(Scheme.checked(Adasum(), 8, radix_plan=[8]))[1] == [8], "unless one is given"


def test_beyond_16_replicas_the_constants_of_the_transport_choose(monkeypatch):
    scheme = Scheme.checked(Adasum(), 32)
    assert levels_of(scheme, shipped=FAST_LEVELS)[1] == [4, 4, 2] != levels_of(scheme)[1]
    monkeypatch.setenv(cost_model.VARIABLE, "alpha=8e-4,beta=5e-9,gamma=7e-11")
    measured = Scheme.checked(Adasum(), 32)
    assert levels_of(measured, shipped=FAST_LEVELS)[1] == [4, 8], "what was measured counts more"


# ---- subclasses of the rules -------------------------------------------------------------------


class Named(Adasum):
    """A user's subclass that adds something, and computes nothing else."""

    name = "mine"


class Halved(Adasum):
    """A user's subclass with coefficients of its own."""

    def coefficients(self, gram):
        return 0.5 * super().coefficients(gram)


class Counting(Adasum):
    """A user's subclass with a state."""

    def coefficients_and_state(self, gram, state):
        return self.coefficients(gram), state


class Mixed(Returns, Adasum):
    """Gets its coefficients from a class that stands before Adasum."""

    def __init__(self):
        Returns.__init__(self, lambda gram: gram[:, 0])
        Adasum.__init__(self)


class Average(Mean):
    """A user's subclass that adds nothing: the way to a mean with a plan or a wire dtype."""


class Thirds(Mean):
    """A user's subclass with coefficients of its own."""

    def coefficients(self, gram):
        return tf.ones_like(gram[:, 0]) / 3


def test_what_a_rule_says_of_itself():
    trees = [Adasum(), Adasum("model"), Named()]
    means = [Mean()]
    others = [Sum(), AdaCons(), Halved(), Counting(), Mixed(), Average(), Thirds(), Returns(None)]
    assert [rule for rule in trees + means + others if rule.is_tree_of_pairs] == trees
    assert [rule for rule in trees + means + others if rule.is_stock_mean] == means


def test_a_subclass_that_computes_nothing_else_keeps_plans_merging_and_the_pair_kernel(monkeypatch):
    rule = Named()
    assert nested([(2, rule), (4, rule)]) is rule
    bucket = buckets.Bucket.of([0], [tf.TensorSpec([5], tf.float32)])
    exchange = LocalExchange(Scheme.checked(rule, 8, radix_plan=[2, 2, 2]))
    assert isinstance(exchange.plan(bucket, is_whole=False), PairwisePlan)
    assert levels_of(Scheme.checked(rule, 32)) == ([rule, rule], [4, 8])
    monkeypatch.setenv(cost_model.VARIABLE, "alpha=0,beta=0,gamma=1")
    assert levels_of(Scheme.checked(rule, 8)) == ([rule, rule], [4, 2])


@pytest.mark.parametrize(
    "rule", [Halved(), Counting(), Mixed()], ids=lambda rule: type(rule).__name__
)
def test_a_subclass_with_coefficients_of_its_own_gets_none_of_them(rule, monkeypatch):
    assert [own for _, own in nested([(2, rule), (4, rule)]).levels] == [rule, rule]
    bucket = buckets.Bucket.of([0], [tf.TensorSpec([5], tf.float32)])
    exchange = LocalExchange(Scheme(rule, 8, radix_plan=(2, 2, 2)))
    assert not isinstance(exchange.plan(bucket, is_whole=False), PairwisePlan)
    monkeypatch.setenv(cost_model.VARIABLE, "alpha=0,beta=0,gamma=1")
    assert levels_of(Scheme(rule, 32, costs=cost_model.measured())) == ([rule], [32])


def test_the_mean_is_tensorflows_own_and_a_subclass_of_it_a_rule_like_others():
    for options in ({"averaged": 2}, {"radix_plan": [2, 4]}, {"wire_dtype": "float16"}):
        with pytest.raises(ValueError, match="TensorFlow's own all-reduce"):
            Scheme.checked(Mean(), 8, **options)
        for rule in (Average(), Thirds()):
            Scheme.checked(rule, 8, **options)


# ---- the environment variable ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alpha=1e-4,beta=1e-9,gamma=1e-10", (1e-4, 1e-9, 1e-10)),
        ("gamma=3,alpha=1,beta=2", (1, 2, 3)),
        (" alpha = 1 , beta = 2,gamma=3 ", (1, 2, 3)),
        ("alpha=0,beta=0,gamma=0", (0, 0, 0)),
    ],
)
def test_the_variable_sets_the_model(monkeypatch, text, expected):
    monkeypatch.setenv(cost_model.VARIABLE, text)
    assert cost_model.measured() == CostModel(*expected)
    scheme = Scheme.checked(Adasum(), 4)
    assert scheme.costs == CostModel(*expected)
    assert scheme.terms()[cost_model.VARIABLE] == list(expected)


@pytest.mark.parametrize("text", [None, ""])
def test_without_the_variable_nothing_was_measured(monkeypatch, text):
    if text is not None:
        monkeypatch.setenv(cost_model.VARIABLE, text)
    assert cost_model.measured() is None
    scheme = Scheme.checked(Adasum(), 4)
    assert scheme.costs is None and scheme.terms()[cost_model.VARIABLE] is None
    assert min(dataclasses.astuple(cost_model.DEFAULT)) > 0


WRONG = [
    "alpha=1,beta=1",
    "alpha=1,beta=1,gamma=1,delta=1",
    "alpha=1,beta=1,gamma=x",
    "alpha=1,beta=1,gamma=",
    "alpha=1,beta=1,gamma=-1",
    "alpha=-1e-9,beta=1,gamma=1",
    "alpha=1,beta=1,gamma=1,",
    "alpha=1;beta=1;gamma=1",
    "1,2,3",
    "default",
    " ",
]


@pytest.mark.parametrize("text", WRONG)
def test_refuses_the_variable(monkeypatch, text):
    monkeypatch.setenv(cost_model.VARIABLE, text)
    for call in (cost_model.measured, lambda: Scheme.checked(Adasum(), 4)):
        with pytest.raises(ValueError, match="TF_ADASUM_COST_MODEL must be like 'alpha=") as caught:
            call()
        assert f"Received: {text!r}" in str(caught.value)


@pytest.mark.parametrize("text", ["alpha=nan,beta=1,gamma=1", "alpha=1,beta=inf,gamma=1"])
def test_refuses_numbers_that_are_not_finite(monkeypatch, text):
    monkeypatch.setenv(cost_model.VARIABLE, text)
    with pytest.raises(ValueError, match="TF_ADASUM_COST_MODEL must be like"):
        cost_model.measured()
