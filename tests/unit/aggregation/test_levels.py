"""Exchanges over several levels: radix plans and averaged neighbours, against trees of vectors.

The collectives are those of `fake_collectives`: every group has an order of ranks of its own.

Shape letters: S segments, R replicas of a group, N of all, n elements of a bucket.
"""

import numpy as np
import pytest
import tensorflow as tf
from support import expected, oracle
from support.expected import assert_combined, gradients_of
from support.fake_collectives import shuffled, together
from support.pairs import BACKENDS, in_pairs

from tf_adasum.aggregation import (
    LocalExchange,
    RuleApplication,
    Scheme,
    aggregate,
    buckets,
    radix_plans,
    rules,
)
from tf_adasum.aggregation.exchange import PairwisePlan
from tf_adasum.ops import library

PLANS = [(4,), (2, 2), (8,), (2, 2, 2), (4, 2), (3,), (6,), (2, 3), (3, 2)]
SOME_PLANS = [(3,), (2, 2), (3, 2)]
MODEL = [(), (5, 7), (0,), (1001,), (1,), (3, 0), (17,)]
GATHERED = 2**40  # bytes: all buckets are gathered

# The CPU op forms the inner products of two float32 vectors in float32, with an error below 1e-6 of
# ‖a‖‖b‖ (`tf_adasum.ops`). It enters the coefficients by half, on each level.
PAIRWISE_TOLERANCE = 1e-6


def scheme_of(plan, rule=None, averaged=1, **options):
    replicas = averaged * int(np.prod(plan))
    return Scheme(rule or rules.Adasum(), replicas, averaged, plan, **options)


@pytest.fixture(params=[4, 64], ids=["unaligned", "aligned"])
def alignment(request, monkeypatch):
    """Shards that hold parts of variables, and of several; and as segments are."""
    monkeypatch.setattr(buckets, "ALIGNED_BYTES", request.param)
    return request.param


@pytest.fixture(params=PLANS, ids=str)
def plan(request):
    return request.param


# ---- radix plans -------------------------------------------------------------------------------


def test_every_plan_is_a_tree_of_trees(plan, alignment):
    gradients, scheme = gradients_of(MODEL, np.prod(plan)), scheme_of(plan)
    results, _ = together(gradients, scheme, order=shuffled(seed=alignment))
    assert_combined(results, gradients, scheme, levels=len(plan))


def test_plans_that_respect_the_tree_are_adasum():
    assert [plan for plan in PLANS if not radix_plans.respects_tree(plan)] == [(3, 2)]
    for plan in PLANS[:-1]:
        own = [gradient for (gradient,) in gradients_of([(50,)], np.prod(plan))]
        tree = expected.in_levels(expected.levels_of(scheme_of(plan)), own)
        np.testing.assert_allclose(tree, oracle.adasum(own), rtol=0, atol=1e-13)


def test_other_plans_are_not():
    gradients = gradients_of([(50,)], 6)
    results, _ = together(gradients, scheme_of((3, 2)))
    own = [each[0] for each in gradients]
    with pytest.raises(AssertionError, match="largest excess"):
        expected.assert_close(results[0][0], oracle.adasum(own), own, levels=2)


@pytest.mark.parametrize("plan", [(2, 2), (2, 3), (4, 2)], ids=str)
def test_a_wrong_rank_order_would_show(plan):
    # Two variables: with the shards of a pair exchanged the wrong one is combined as the second.
    gradients, scheme = gradients_of([(144,), (48,)], np.prod(plan)), scheme_of(plan)
    results, _ = together(gradients, scheme, order=lambda members: members[::-1], told=sorted)
    with pytest.raises(AssertionError, match="largest excess"):
        assert_combined(results, gradients, scheme, levels=len(plan))


@pytest.mark.parametrize("plan", [(4,), (2, 2, 2), *SOME_PLANS], ids=str)
def test_every_size_in_a_bucket_of_its_own(plan, alignment):
    gradients = gradients_of([(1,), (2,), (0,), (17,), (1001,)], np.prod(plan))
    scheme = scheme_of(plan)
    results, _ = together(gradients, scheme, bucket_bytes=1)
    assert_combined(results, gradients, scheme, levels=len(plan))


@in_pairs(plan=SOME_PLANS, piece_bytes=[400, 1000], alignment=[4, 64])
def test_large_buckets_go_in_pieces(plan, piece_bytes, alignment, monkeypatch, sums_by_a_ring):
    monkeypatch.setattr("tf_adasum.aggregation.buckets.PIECE_BYTES", piece_bytes)
    gradients, scheme = gradients_of([(7,), (500,), (3,), (90,)], np.prod(plan)), scheme_of(plan)
    results, hall = together(gradients, scheme)
    assert_combined(results, gradients, scheme, levels=len(plan))
    in_bucket = 4 * (600 if alignment == 4 else 16 + 512 + 16 + 96)
    pieces = round(in_bucket / piece_bytes)
    down = (["all_to_all"] * pieces + ["all_reduce"]) * len(plan)
    for calls in hall.calls:
        kinds = [kind for kind, _ in calls]
        assert kinds == down + ["all_gather"] * pieces * len(plan)


@in_pairs(dtype=expected.DTYPES, plan=[(2, 2), (3, 2)], choice=BACKENDS)
def test_every_dtype_on_both_backends(plan, dtype, choice, monkeypatch):
    if choice == "custom" and not library.status().loaded:
        pytest.skip(f"the compiled op is not loaded: {library.status().reason}")
    monkeypatch.setenv(library.CHOICE_VARIABLE, choice)
    gradients, scheme = gradients_of(MODEL, np.prod(plan), dtype), scheme_of(plan)
    results, _ = together(gradients, scheme)
    assert_combined(results, gradients, scheme, levels=len(plan))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("plan", [*SOME_PLANS, (2, 2, 2)], ids=str)
def test_a_bad_number_spoils_its_variable_on_every_replica(plan, bad):
    gradients, scheme = gradients_of([(50,), (60,), (70,)], np.prod(plan)), scheme_of(plan)
    clean, _ = together(gradients, scheme)
    for replica in (0, len(gradients) - 1):
        spoilt = [[gradient.copy() for gradient in own] for own in gradients]
        spoilt[replica][1][59] = bad  # one shard holds it; all replicas have to know
        results, _ = together(spoilt, scheme)
        for result in results:
            assert not np.isfinite(result[1]).any()
            assert result[0].tobytes() == clean[0][0].tobytes()
            assert result[2].tobytes() == clean[0][2].tobytes()


def test_a_gathered_bucket_agrees(plan):
    gradients, scheme = gradients_of(MODEL, np.prod(plan)), scheme_of(plan)
    results, hall = together(gradients, scheme, gathered_bytes=GATHERED)
    assert_combined(results, gradients, scheme)  # all levels on one Gram matrix: rounded once
    assert [kind for kind, _ in hall.calls[0]] == ["all_gather"]


@pytest.mark.parametrize("dtype", expected.DTYPES, ids=lambda dtype: dtype.name)
def test_local_replicas_agree(plan, dtype):
    gradients, scheme = gradients_of(MODEL, np.prod(plan), dtype), scheme_of(plan)
    exchange = LocalExchange(scheme)
    is_pairwise = set(plan) == {2}
    for bucket in buckets.plan([tf.constant(gradient) for gradient in gradients[0]]):
        assert isinstance(exchange.plan(bucket, is_whole=False), PairwisePlan) == is_pairwise
    results = [[gradient.numpy() for gradient in aggregate(gradients, exchange)]]
    # Pairs are rounded after each level, and so are their inner products.
    options = {"levels": len(plan)} if is_pairwise else {}
    if is_pairwise and dtype != tf.float64:
        options["tolerance"] = len(plan) * PAIRWISE_TOLERANCE
    assert_combined(results, gradients, scheme, **options)


@pytest.mark.parametrize("replicas", [4, 6, 8])
def test_a_plan_of_its_own_choice_is_adasum(replicas):
    gradients, scheme = gradients_of([(400,), (17,)], replicas), Scheme(rules.Adasum(), replicas)
    results, _ = together(gradients, scheme)
    assert_combined(results, gradients, scheme, levels=3)  # or fewer


@pytest.mark.parametrize("plan", [(2, 2), (3, 2), (2, 2, 2)], ids=str)
def test_a_sum_of_sums(plan):
    gradients, scheme = gradients_of(MODEL, np.prod(plan)), scheme_of(plan, rules.Sum())
    for gathered_bytes in (0, GATHERED):
        results, _ = together(gradients, scheme, gathered_bytes=gathered_bytes)
        assert_combined(results, gradients, scheme, levels=len(plan))


# ---- what is sent ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "averaged"),
    [*((plan, 1) for plan in PLANS), ((2,), 2), ((3,), 2), ((2, 2), 2)],
    ids=str,
)
def test_every_plan_sends_the_bytes_of_a_ring_all_reduce(plan, averaged, alignment, sums_by_a_ring):
    scheme = scheme_of(plan, averaged=averaged)
    replicas, variables = scheme.replicas, 3
    gradients = gradients_of([(1001,)] * variables, replicas)
    _, hall = together(gradients, scheme)
    levels = [averaged, *plan] if averaged > 1 else plan
    multiple = replicas * (alignment // 4 if len(levels) > 1 else 1)
    size = variables * (1001 if alignment == 4 else 1008)
    size = -(-size // multiple) * multiple  # every shard of every level is as long
    of_grams = sum(8 * variables * radix * (radix + 1) // 2 for radix in plan)  # means need none
    for sent in hall.sent:
        assert sent["all_to_all"] + sent["all_gather"] == 2 * 4 * size * (replicas - 1) / replicas
        assert sent["all_reduce"] == of_grams
        assert set(sent) == {"all_to_all", "all_gather", "all_reduce"}


# ---- averaged neighbours -----------------------------------------------------------------------


RULES = [rules.Adasum(), rules.AdaCons(granularity="variable"), rules.AdaCons(), rules.Sum()]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("replicas", [4, 6])
def test_a_rule_on_means(replicas, rule):
    # No single numbers: of two with different signs, AdaCons divides by Σα, which is nearly zero.
    shapes = [shape for shape in MODEL if np.prod(shape) != 1]
    gradients, scheme = gradients_of(shapes, replicas), Scheme(rule, replicas, averaged=2)
    for bucket_bytes, gathered_bytes in ((None, 0), (100, 0), (100, GATHERED)):
        results, _ = together(
            gradients, scheme, bucket_bytes=bucket_bytes, gathered_bytes=gathered_bytes
        )
        assert_combined(results, gradients, scheme, levels=2)
    local = aggregate(gradients, LocalExchange(scheme))
    assert_combined([[gradient.numpy() for gradient in local]], gradients, scheme)


@pytest.mark.parametrize("averaged", [2, 3, 6])
def test_means_of_any_number(averaged):
    gradients = gradients_of(MODEL, 6)
    scheme = Scheme(rules.Adasum(), 6, averaged)
    for gathered_bytes in (0, GATHERED):
        results, _ = together(gradients, scheme, gathered_bytes=gathered_bytes)
        assert_combined(results, gradients, scheme, levels=2)


def test_means_below_a_plan_of_two_levels():
    gradients, scheme = gradients_of(MODEL, 8), scheme_of((2, 2), averaged=2)
    for gathered_bytes in (0, GATHERED):
        results, _ = together(gradients, scheme, gathered_bytes=gathered_bytes)
        assert_combined(results, gradients, scheme, levels=3)


def test_a_bad_number_spoils_the_combination_of_means():
    gradients, scheme = gradients_of([(50,), (60,)], 6), Scheme(rules.Adasum(), 6, averaged=2)
    gradients[3][1][7] = np.nan
    results, _ = together(gradients, scheme)
    for result in results:
        assert np.isfinite(result[0]).all() and np.isnan(result[1]).all()


# ---- the whole model as one vector -------------------------------------------------------------


@in_pairs(
    gathered_bytes=[0, 3 * 400, GATHERED],
    rule=[rules.Adasum(granularity="model"), rules.AdaCons()],
    replicas=[2, 3],
)
def test_one_coefficient_for_several_buckets(rule, replicas, gathered_bytes):
    # Of two dtypes, too. With 1200 bytes some buckets are gathered, and the others are not.
    gradients = gradients_of(MODEL, replicas)
    halves = gradients_of([(30,), (500,)], replicas, tf.bfloat16, seed=1)
    gradients = [own + half for own, half in zip(gradients, halves, strict=True)]
    scheme = Scheme(rule, replicas)
    results, _ = together(gradients, scheme, bucket_bytes=100, gathered_bytes=gathered_bytes)
    # The coefficients belong to all variables: their error is relative to the longest of them.
    longest = max(np.linalg.norm(v.astype(np.float64)) for own in gradients for v in own)
    assert_combined(results, gradients, scheme, tolerance=expected.COEFFICIENT_TOLERANCE * longest)
    alone, _ = together(gradients, scheme_of((replicas,)), bucket_bytes=100)
    assert np.max(np.abs(alone[0][1] - results[0][1])) > 1e-3, "each variable for itself differs"


def test_a_bad_number_spoils_the_whole_model():
    gradients = gradients_of([(50,), (60,), (70,)], 3)
    gradients[1][1][7] = np.inf
    scheme = Scheme(rules.Adasum(granularity="model"), 3)
    results, _ = together(gradients, scheme, bucket_bytes=1)
    assert all(not np.isfinite(gradient).any() for result in results for gradient in result)


@pytest.mark.parametrize("averaged", [1, 2])
def test_the_state_is_the_same_on_all_replicas(averaged):
    """Two steps of AdaCons: the momentum of ranks, by its formula."""
    rule = rules.AdaCons(momentum=0.75, granularity="variable")
    scheme = Scheme(rule, 6, averaged)
    applications = [RuleApplication.of_first_step(scheme, 2) for _ in range(6)]
    momentum = None
    for step in range(2):
        gradients = gradients_of([(40,), (17,)], 6, seed=step)
        together(gradients, scheme, bucket_bytes=1, applications=applications)
        sorted_alpha = []
        for own in zip(*gradients, strict=True):
            own = np.array(own, np.float64)
            means = np.mean(np.reshape(own, [6 // averaged, averaged, -1]), axis=1)
            lengths = np.linalg.norm(means, axis=1)
            sorted_alpha.append(np.sort(means @ np.mean(means, axis=0) / (lengths + 1e-8)))
        sorted_alpha = np.array(sorted_alpha)
        momentum = sorted_alpha if step == 0 else 0.75 * momentum + 0.25 * sorted_alpha
        states = [{name: v.numpy() for name, v in a.state.items()} for a in applications]
        for state in states:
            assert state["momentum"].tobytes() == states[0]["momentum"].tobytes()
            assert (state["steps"] == step + 1).all()
        # Means are rounded to float32 on their way.
        tolerance = 1e-12 if averaged == 1 else 1e-5
        np.testing.assert_allclose(states[0]["momentum"], momentum, rtol=0, atol=tolerance)
