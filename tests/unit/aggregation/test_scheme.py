"""Scheme: the user's settings, and the default plan. test_radix_plans.py has the plans' trees."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support.scheme_oracle import Returns

from tf_adasum.aggregation import Scheme, buckets
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.levels import AllGatherLevel, ReduceScatterLevel
from tf_adasum.aggregation.reduction_planner import (
    CollectiveReductionPlanner,
    LocalReductionPlanner,
    PairwisePlan,
)
from tf_adasum.aggregation.rules import AdaCons, Adasum, Mean, Sum
from tf_adasum.aggregation.rules.nested import nested

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


DEVICES_AFTER_THE_CHECK = """
import tensorflow as tf
from tensorflow.python.eager import context
from tf_adasum import rules
from tf_adasum.aggregation import Scheme

class Norms(rules.AggregationRule):
    def coefficients(self, gram):
        return tf.cast(1 / tf.sqrt(tf.linalg.diag_part(gram)), tf.float32)

for rule in (Norms(), rules.Adasum("model"), rules.AdaCons()):
    Scheme.from_arguments(rule, 8, local_reduction_size=2, radix_plan=[4], wire_dtype="bfloat16")
assert not context.context()._initialized
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
print(len(tf.config.list_logical_devices("CPU")), "devices")
"""


def test_the_check_leaves_the_devices_to_be_configured():
    """In another process, because TensorFlow creates its devices only once."""
    printed = subprocess.check_output(
        [sys.executable, "-c", DEVICES_AFTER_THE_CHECK],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        text=True,
        timeout=120,
    )
    assert printed.endswith("3 devices\n")


def test_settings_of_different_schemes_differ():
    schemes = [
        Scheme(Adasum(), 8),
        Scheme(Adasum("model"), 8),
        Scheme(AdaCons(), 8),
        Scheme(AdaCons(0.5), 8),
        Scheme(Adasum(), 8, radix_plan=(8,)),
        Scheme(Adasum(), 8, radix_plan=(2, 4)),
        Scheme(Adasum(), 8, local_reduction_size=2),
        Scheme(Adasum(), 8, wire_dtype=tf.float16),
        Scheme(Adasum(), 8, wire_dtype=tf.bfloat16),
        Scheme(Adasum(), 8, replicas_per_host=2),
    ]
    assert len({json.dumps(own.settings_that_must_match()) for own in schemes}) == len(schemes)
    assert Scheme(Adasum(), 8).settings_that_must_match() == schemes[0].settings_that_must_match()


# ---- the default plan --------------------------------------------------------------------------


def levels_of(scheme, elements=2**18, **options):
    """The rules, radices and kinds of the levels on which a bucket of float32 is combined."""
    members = []

    def group_of(stride, radix):
        members.append((stride, radix))
        return CollectiveGroup(None, range(radix), 0)

    bucket = buckets.Bucket.from_gradients([0], [tf.TensorSpec([elements], tf.float32)])
    plan = CollectiveReductionPlanner(scheme, group_of, **options).plan(
        bucket, needs_full_gram=False
    )
    kinds = {type(level) for level in plan.levels}
    return [level.rule for level in plan.levels], [radix for _, radix in members[::2]], kinds


@pytest.mark.parametrize(
    ("scheme", "radices"),
    [
        (Scheme(Adasum(), 32), [4, 8]),
        (Scheme(Adasum("model"), 32), [32]),
        (Scheme(Sum(), 32), [32]),
        # The plan is that of the means, of which each member has a part of the bucket.
        (Scheme(Adasum(), 64, local_reduction_size=2), [2, 4, 8]),
        (Scheme(Adasum(), 32, radix_plan=(32,)), [32]),
        # Four replicas on each host.
        (Scheme(Adasum(), 8, replicas_per_host=4), [4, 2]),
        (Scheme(AdaCons(), 8, replicas_per_host=4), [8]),
        (Scheme(Mean(), 8, replicas_per_host=4), [4, 2]),
        (Scheme(Adasum(), 64, 4, replicas_per_host=4), [4, 16]),
        (Scheme(Adasum(), 128, replicas_per_host=4), [4, 4, 8]),
        (Scheme(Adasum(), 8, radix_plan=(8,), replicas_per_host=4), [8]),
    ],
)
def test_exchanges_take_the_default_plan(scheme, radices):
    assert levels_of(scheme)[1] == radices
    own = radices[scheme.local_reduction_size > 1 :]
    levels = 1 if scheme.local_reduction_size > 1 else 1 + (scheme.replicas_per_host > 1)
    varies = scheme.radix_plan is None and len(own) > levels
    words = "with the fewest messages" if varies else own
    assert f"radix plan {words}" in scheme.summary()


@pytest.mark.parametrize(
    ("per_host", "size", "kind"),
    [
        (1, 2**18, AllGatherLevel),
        (1, 2**18 + 1, ReduceScatterLevel),
        (4, 2**16, AllGatherLevel),
        (4, 2**16 + 1, ReduceScatterLevel),
    ],
)
def test_a_small_bucket_is_gathered_unless_the_replicas_of_a_host_receive_many_bytes(
    per_host, size, kind
):
    limits = {"all_gather_threshold_bytes": 8 * 4 * 2**18}
    scheme = Scheme(Adasum(), 8, replicas_per_host=per_host)
    for each in (scheme, dataclasses.replace(scheme, rule=Sum())):
        assert levels_of(each, size, **limits)[2] == {kind}


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
    bucket = buckets.Bucket.from_gradients([0], [tf.TensorSpec([5], tf.float32)])
    plan = LocalReductionPlanner(Scheme(rule, 8, radix_plan=(2, 2, 2))).plan(
        bucket, needs_full_gram=False
    )
    assert isinstance(plan, PairwisePlan) == is_tree
    assert levels_of(Scheme(rule, 32))[:2] == (
        ([rule, rule], [4, 8]) if is_tree else ([rule], [32])
    )
