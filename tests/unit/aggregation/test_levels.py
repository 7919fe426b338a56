"""Exchanges over one level and several: rules, plans and averaged neighbours, against the vectors.

The collectives are those of `fake_collectives`: every group has another order of ranks.
"""

import numpy as np
import pytest
import tensorflow as tf
from support import scheme_oracle
from support.all_pairs import BACKENDS, parametrize_all_pairs
from support.fake_collectives import exchanged_arrays
from support.scheme_oracle import assert_combined, gradients_of

from tf_adasum.aggregation import LocalReductionPlanner, Scheme, aggregate, buckets
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.rules import AdaCons, Adasum, Sum

PLANS = [(4,), (2, 2), (8,), (2, 2, 2), (4, 2), (3,), (6,), (2, 3), (3, 2)]
SOME_PLANS = [(3,), (2, 2), (3, 2)]
MODEL = [(), (5, 7), (0,), (1001,), (1,), (3, 0), (17,), (2,)]
GATHERED = 2**40  # bytes: all buckets are gathered
# Of the pairs that the CPU op combines in float32, see `tf_adasum.ops`; on each level.
PAIRWISE_TOLERANCE = 1e-6


def scheme_of(plan, rule=None, local_reduction_size=1):
    replicas = local_reduction_size * int(np.prod(plan))
    return Scheme(rule or Adasum(), replicas, local_reduction_size, plan)


def sent(bucket_bytes, all_gather_threshold_bytes):
    return {"bucket_bytes": bucket_bytes, "all_gather_threshold_bytes": all_gather_threshold_bytes}


@pytest.fixture(params=[4, 64], ids=["unaligned", "aligned"])
def alignment(request, monkeypatch):
    """ReduceScatterLevel that hold parts of variables, and of several; and aligned segments."""
    monkeypatch.setattr(buckets, "ALIGNED_BYTES", request.param)
    return request.param


def assert_exchanged(gradients, scheme, options):
    """Through collectives, and in one process, in which pairs are rounded after each level."""
    results, hub = exchanged_arrays(gradients, scheme, **options)
    plan, levels = scheme.radix_plan or (1,), scheme.levels(scheme.radix_plan or (1,))
    # If all is gathered, all levels are computed from one Gram matrix: one rounding.
    is_gathered = options["all_gather_threshold_bytes"] == GATHERED
    assert_combined(results, gradients, scheme, levels=1 if is_gathered else len(levels))
    assert not is_gathered or {kind for kind, _ in hub.calls[0]} <= {"all_gather"}
    local = [gradient.numpy() for gradient in aggregate(gradients, LocalReductionPlanner(scheme))]
    is_pairwise = set(plan) == {2} and scheme.local_reduction_size == 1
    rounds_pairs = is_pairwise and local[0].dtype != np.float64
    pairs = {"levels": len(plan), "tolerance": len(plan) * PAIRWISE_TOLERANCE}
    assert_combined([local], gradients, scheme, **(pairs if rounds_pairs else {}))


# ---- radix plans -------------------------------------------------------------------------------


@parametrize_all_pairs(
    plan=PLANS,
    rule=[Adasum(), Sum()],
    options=[sent(None, 0), sent(1, 0), sent(None, GATHERED), sent(1, GATHERED)],
    alignment=[4, 64],
    dtype=scheme_oracle.DTYPES,
    backend=BACKENDS,
)
def test_every_plan_is_a_tree_of_trees(plan, rule, options, alignment, dtype, backend):
    assert_exchanged(gradients_of(MODEL, np.prod(plan), dtype), scheme_of(plan, rule), options)


# All rules on one level; and on means of two or more neighbours.
SCHEMES = [
    Scheme(rule(), replicas, radix_plan=(replicas,))
    for rule in scheme_oracle.COMBINE
    for replicas in (1, 2, 5)
]
SCHEMES += [
    Scheme(rule, replicas, local_reduction_size=2)
    for rule in (Adasum(), Adasum("model"), AdaCons(granularity="variable"), AdaCons(), Sum())
    for replicas in (4, 6)
]
SCHEMES += [
    *(Scheme(Adasum(), 6, local_reduction_size=size) for size in (3, 6)),
    scheme_of((2, 2), local_reduction_size=2),
]


@parametrize_all_pairs(
    scheme=SCHEMES,
    # Some buckets are gathered, or all.
    options=[sent(None, 0), sent(100, 0), sent(1, 3 * 400), sent(None, GATHERED)],
    alignment=[4, 64],
)
def test_every_rule_in_any_order_of_ranks(scheme, options, alignment):
    # No single numbers: of two with different signs, AdaCons divides by Σα, which is nearly zero.
    shapes = [shape for shape in MODEL if np.prod(shape) != 1]
    assert_exchanged(gradients_of(shapes, scheme.replicas), scheme, options)


def test_a_small_bucket_takes_one_round(alignment):
    """Up to the threshold; here of three buckets, of about 400, 800 and 400 bytes."""
    gradients, scheme = gradients_of([(96,), (192,), (96,)], 3), scheme_of((3,))
    for limit, rounds in ((3 * 384 - 1, 9), (3 * 384, 5), (3 * 768 - 1, 5), (3 * 768, 3)):
        _, hub = exchanged_arrays(gradients, scheme, **sent(1, limit))
        assert [len(calls) for calls in hub.calls] == [rounds] * 3


@pytest.mark.parametrize(("limit", "is_gathered"), [(2 * 4 * 384, True), (2 * 4 * 384 - 1, False)])
def test_the_replicas_of_a_host_receive_the_bytes_of_a_small_bucket_together(limit, is_gathered):
    gradients = gradients_of([(96,)], 4)
    for rule in (Adasum(), Sum()):
        scheme = Scheme(rule, 4, replicas_per_host=2)
        _, hub = exchanged_arrays(gradients, scheme, all_gather_threshold_bytes=limit)
        assert ({kind for kind, _ in hub.calls[0]} == {"all_gather"}) == is_gathered


@parametrize_all_pairs(plan=[(2,), (4,), *SOME_PLANS], piece_bytes=[400, 1000], alignment=[4, 64])
def test_large_buckets_go_in_pieces(plan, piece_bytes, alignment, monkeypatch, sums_by_a_ring):
    monkeypatch.setattr("tf_adasum.aggregation.buckets.PIECE_BYTES", piece_bytes)
    gradients, scheme = gradients_of([(7,), (500,), (3,), (90,)], np.prod(plan)), scheme_of(plan)
    results, hub = exchanged_arrays(gradients, scheme)
    assert_combined(results, gradients, scheme, levels=len(plan))
    in_bucket = 4 * (600 if alignment == 4 else 16 + 512 + 16 + 96)
    pieces = round(in_bucket / piece_bytes)
    down = (["all_to_all"] * pieces + ["all_reduce"]) * len(plan)
    for calls in hub.calls:
        assert [kind for kind, _ in calls] == down + ["all_gather"] * pieces * len(plan)


@pytest.mark.parametrize(
    ("plan", "averaged"),
    [*((plan, 1) for plan in PLANS), ((2,), 2), ((3,), 2), ((2, 2), 2)],
    ids=str,
)
def test_every_plan_sends_the_bytes_of_a_ring_all_reduce(plan, averaged, alignment, sums_by_a_ring):
    scheme = scheme_of(plan, local_reduction_size=averaged)
    replicas, variables = scheme.replicas, 3
    _, hub = exchanged_arrays(gradients_of([(1001,)] * variables, replicas), scheme)
    levels = [averaged, *plan] if averaged > 1 else plan
    multiple = replicas * (alignment // 4 if len(levels) > 1 else 1)
    size = variables * (1001 if alignment == 4 else 1008)
    size = -(-size // multiple) * multiple  # the shards of one level have equal lengths
    sent = 4 * size * (replicas - 1) / replicas
    of_grams = sum(8 * variables * radix * (radix + 1) // 2 for radix in plan)  # means need none
    wanted = {"all_to_all": sent, "all_reduce": of_grams, "all_gather": sent}
    assert hub.sent == [wanted] * replicas


def test_a_sum_of_unknown_size_is_not_gathered():
    class Ring:
        def all_reduce(self, value):
            return 3 * value

    group = CollectiveGroup(Ring(), [0, 1, 2], 0)
    function = tf.function(group.all_reduce, input_signature=[tf.TensorSpec([None])])
    assert function([1.0, 2.0]).numpy().tolist() == [3.0, 6.0]


# ---- NaN and Inf -------------------------------------------------------------------------------


@parametrize_all_pairs(
    scheme=[*map(scheme_of, [*SOME_PLANS, (2, 2, 2)]), Scheme(Adasum(), 6, local_reduction_size=2)],
    bad=[np.nan, np.inf],
    replica=[0, -1],
    options=[sent(None, 0), sent(None, GATHERED)],
)
def test_a_bad_number_spoils_its_variable_on_every_replica(scheme, bad, replica, options):
    gradients = gradients_of([(50,), (60,), (70,)], scheme.replicas)
    clean, _ = exchanged_arrays(gradients, scheme, **options)
    gradients[replica][1][59] = bad  # only one shard holds it
    results, _ = exchanged_arrays(gradients, scheme, **options)
    for result in results:
        assert not np.isfinite(result[1]).any()
        assert result[0].tobytes() == clean[0][0].tobytes()
        assert result[2].tobytes() == clean[0][2].tobytes()
