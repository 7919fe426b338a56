"""Scheme: the user's settings, and the default plan. test_radix_plans.py has the plans' trees."""

import json

import numpy as np
import pytest
import tensorflow as tf
from support.scheme_oracle import Returns
from tensorflow.python.eager import context

from tf_adasum.aggregation import Scheme, buckets
from tf_adasum.aggregation.reduction_planner import (
    LocalReductionPlanner,
    PairwisePlan,
)
from tf_adasum.aggregation.rules import AdaCons, Adasum, Mean, Sum
from tf_adasum.aggregation.rules.nested import Nested, nested

# ---- radix plans -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "replicas", "expected"),
    [
        (None, 4, None),
        ([4], 4, (4,)),
        (np.array([2, 2]), 4, (2, 2)),
        ([np.int64(4)], 4, (4,)),
        (range(4, 5), 4, (4,)),
        ([2, 3], 6, (2, 3)),
        ([1], 1, (1,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("averaged", [1, 2])
def test_good_plans(plan, replicas, averaged, expected):
    options = {"local_reduction_size": averaged, "radix_plan": plan}
    scheme = Scheme.from_arguments(Adasum(), averaged * replicas, **options)
    assert scheme.radix_plan == expected
    assert all(type(radix) is int for radix in scheme.radix_plan or ())
    json.dumps(scheme.settings_that_must_match())


@pytest.mark.parametrize(
    ("plan", "replicas"),
    [
        *(
            (plan, 4)
            for plan in (
                [], [3], [2, 2, 2], [4, 1], [-2, -2], [0], [2.0, 2.0], "22", 4, [None], {"a": 4},
            )
        ),
        ([True], 1),
        ([4, 3], 6),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("averaged", [1, 2])
def test_refuses_plans(plan, replicas, averaged):
    message = rf"`radix_plan` must be .* product is {replicas},"
    with pytest.raises(ValueError, match=message) as caught:
        options = {"local_reduction_size": averaged, "radix_plan": plan}
        Scheme.from_arguments(Adasum(), averaged * replicas, **options)
    assert f"Received: radix_plan={plan!r}" in str(caught.value)


@pytest.mark.parametrize(
    "rule", [AdaCons(), Adasum("model"), Adasum({".*": "all"}), Returns()], ids=repr
)
def test_rules_that_need_all_gradients_take_one_level(rule):
    assert Scheme.from_arguments(rule, 8, local_reduction_size=2, radix_plan=[4]).radix_plan == (4,)
    message = r"must be None or \[4\] with .*: the rule needs .*Received: radix_plan=\[2, 2\]"
    with pytest.raises(ValueError, match=message):
        Scheme.from_arguments(rule, 8, local_reduction_size=2, radix_plan=(2, 2))


# ---- Scheme.from_arguments: the rest -----------------------------------------------------------


def test_wire_dtypes():
    for good in (None, tf.bfloat16, tf.float16):
        for given in (good, good and good.name):
            assert Scheme.from_arguments(Adasum(), 4, wire_dtype=given).wire_dtype == good
    for wrong in ("float32", "", tf.int8, True, 0):
        with pytest.raises(ValueError, match="`wire_dtype` must be 'bfloat16', 'float16' or"):
            Scheme.from_arguments(Adasum(), 4, wire_dtype=wrong)


def test_coefficients_of_a_users_rule_are_probed():
    """These are finite for all groups but the last one."""
    wrong = Returns(lambda gram: gram[:, 0, :] / tf.constant([[1.0]] * 4 + [[0.0]], tf.float64))
    with pytest.raises(ValueError, match=r"Returns\(\) returned coefficients that are not fin"):
        Scheme.from_arguments(wrong, 8, local_reduction_size=2).probe_values()
    Scheme.from_arguments(Returns(tf.linalg.diag_part), 8).probe_values()


def test_the_check_leaves_the_devices_to_be_configured(monkeypatch):
    """TensorFlow creates its devices when it first runs an operation eagerly."""
    monkeypatch.setattr(context.Context, "ensure_initialized", lambda _: pytest.fail("it runs"))
    rule = Returns(lambda gram: 1 / gram[:, 0])
    Scheme.from_arguments(rule, 8, local_reduction_size=2, wire_dtype="bfloat16")
    with pytest.raises(pytest.fail.Exception, match="it runs"):
        tf.constant([1.0]) + 1.0


# ---- the default plan --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "radices"),
    [
        (Scheme(Adasum(), 32), [4, 8]),
        (Scheme(Adasum("model"), 32), [32]),
        (Scheme(Sum(), 32), [32]),
        # The plan is that of the means, of which each member has a part of the bucket.
        (Scheme(Adasum(), 64, local_reduction_size=2), [4, 8]),
        (Scheme(Adasum(), 32, radix_plan=(32,)), [32]),
        # Four replicas on each host.
        (Scheme(Adasum(), 8, replicas_per_host=4), [4, 2]),
        (Scheme(AdaCons(), 8, replicas_per_host=4), [8]),
        (Scheme(Mean(), 8, replicas_per_host=4), [4, 2]),
        (Scheme(Adasum(), 64, 4, replicas_per_host=4), [16]),
        (Scheme(Adasum(), 128, replicas_per_host=4), [4, 4, 8]),
        (Scheme(Adasum(), 8, radix_plan=(8,), replicas_per_host=4), [8]),
    ],
)
def test_exchanges_take_the_default_plan(scheme, radices):
    assert list(scheme.plan(2**20, 1)) == radices


def test_replicas_share_hosts_if_there_are_several_on_each_of_several():
    for per_host, expected in ((4, 4), (8, 1), (1, 1), (None, 1)):
        scheme = Scheme.from_arguments(Adasum(), 8, replicas_per_host=per_host)
        assert scheme.replicas_per_host == expected


# ---- subclasses of the rules -------------------------------------------------------------------


class Halved(Adasum):
    """A user's subclass that computes other coefficients."""

    def coefficients(self, gram):
        return 0.5 * super().coefficients(gram)


class Mixed(Returns, Adasum):
    """Inherits its coefficients from a class that comes before Adasum."""

    def __init__(self):
        Returns.__init__(self)
        Adasum.__init__(self)


@pytest.mark.parametrize(
    ("rule", "is_tree"),
    [
        (Adasum(), True),
        (type("Named", (Adasum,), {})(), True),
        (Halved(), False),
        (Mixed(), False),
        (AdaCons(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_rules_that_compute_as_adasum_get_plans_merging_and_the_pair_kernel(rule, is_tree):
    assert (nested([(2, rule), (4, rule)]) is rule) == is_tree
    assert isinstance(nested([(3, rule), (2, rule)]), Nested)  # another tree than of six
    bucket = buckets.Bucket.from_gradients([0], [tf.TensorSpec([5], tf.float32)])
    plan = LocalReductionPlanner(Scheme(rule, 8, radix_plan=(2, 2, 2))).plan(
        bucket, needs_full_gram=False
    )
    assert isinstance(plan, PairwisePlan) == is_tree
    assert Scheme(rule, 32).plan(2**20, 1) == ((4, 8) if is_tree else (32,))
