"""The exchange among replicas: R threads that really swap rows, against the NumPy oracle.

On one level, over all replicas; for several see test_levels.
"""

import itertools

import numpy as np
import pytest
from support import scheme_oracle
from support.all_pairs import parametrize_all_pairs
from support.fake_collectives import exchanged_arrays
from support.scheme_oracle import assert_combined, gradients_of

from tf_adasum.aggregation import Scheme, buckets, rules
from tf_adasum.aggregation.levels import shard_segments


@pytest.fixture(autouse=True)
def alignment(request, monkeypatch):
    """By default segments without gaps, so that shards hold parts of variables, and of several."""
    monkeypatch.setattr(buckets, "ALIGNED_BYTES", getattr(request, "param", 4))


def in_order(gradients, rule, order, **options):
    """The result of each replica if the replicas have these ranks, and the hub."""
    scheme = Scheme(rule, len(order), radix_plan=(len(order),))
    results, hub = exchanged_arrays(gradients, scheme, order=lambda _: order, **options)
    assert_combined(results, gradients, scheme)
    return hub


def rank_orders():
    """Every order for R = 2, 3; the worst and one at random for R = 4..7."""
    for replicas in (1, 2, 3):
        yield from itertools.permutations(range(replicas))
    for replicas in range(4, 8):
        yield tuple(reversed(range(replicas)))
        yield tuple(np.random.default_rng(replicas).permutation(replicas).tolist())


@parametrize_all_pairs(
    order=list(rank_orders()),
    rule=[rule() for rule in scheme_oracle.COMBINE],
    all_gather_threshold_bytes=[0, 2**40],
    bucket_bytes=[None, 1, 100],
    alignment=[4, 64],
)
def test_every_rule_in_every_rank_order(
    rule, order, all_gather_threshold_bytes, bucket_bytes, alignment
):
    gradients = gradients_of([(), (5, 7), (0,), (1000,), (1,), (3, 0), (17,), (2,)], len(order))
    in_order(
        gradients,
        rule,
        order,
        all_gather_threshold_bytes=all_gather_threshold_bytes,
        bucket_bytes=bucket_bytes,
    )


def test_a_small_bucket_takes_one_round():
    """Up to the threshold; here of three buckets, of 400, 800 and 400 bytes."""
    gradients = gradients_of([(100,), (200,), (100,)], 3)
    for limit, rounds in ((3 * 400 - 1, 9), (3 * 400, 5), (3 * 800 - 1, 5), (3 * 800, 3)):
        hub = in_order(
            gradients, rules.Adasum(), (1, 2, 0), bucket_bytes=1, all_gather_threshold_bytes=limit
        )
        assert [len(calls) for calls in hub.calls] == [rounds] * 3


@pytest.mark.parametrize("replicas", range(1, 8))
def test_shards_cover_every_element_of_every_variable_once(replicas):
    random = np.random.default_rng(replicas)
    for large in (1, 2**33):
        for _ in range(20):
            sizes = large * random.integers(0, 20, 6)
            segments = np.cumsum([0, *sizes, 1])
            width = -(-int(segments[-1]) // replicas)
            cuts = [shard_segments(segments, rank * width, width) for rank in range(replicas)]
            covered = np.sum([np.diff(cut) for cut in cuts], axis=0)
            assert covered[:-1].tolist() == sizes.tolist()
            padding = width * replicas - segments[-1]
            assert covered[-1] == 1 + padding, "the last variable and the padding"
            assert all(cut[0] == 0 and cut[-1] == width for cut in cuts)
