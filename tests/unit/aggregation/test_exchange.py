"""The exchange among replicas: R threads that really swap rows, against the NumPy oracle.

On one level, over all replicas; for several see test_levels.

Shape letters: S segments, R replicas, n elements of a bucket, W of a shard.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from support import expected
from support.expected import gradients_of
from support.fake_collectives import FakeCollectives, Hall, in_turns, together
from support.pairs import BACKENDS, in_pairs

from tf_adasum.aggregation import LocalExchange, Scheme, buckets, rules
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.levels import Shards, shard_segments
from tf_adasum.ops import library

MODEL = [(), (5, 7), (0,), (1000,), (1,), (3, 0), (17,)]


@pytest.fixture(autouse=True)
def segments_without_gaps(monkeypatch):
    """So that the shards of these small models hold parts of variables, and of several."""
    monkeypatch.setattr(buckets, "ALIGNED_BYTES", 4)


@pytest.fixture(params=[4, 64], ids=["unaligned", "aligned"])
def alignment(request, segments_without_gaps, monkeypatch):
    """Without gaps, and as segments are."""
    monkeypatch.setattr(buckets, "ALIGNED_BYTES", request.param)
    return request.param


GATHERED_BYTES = [0, 2**40]


@pytest.fixture(params=GATHERED_BYTES, ids=["all-to-all", "all-gather"])
def gathered_bytes(request):
    """Which of the two plans is taken."""
    return request.param


def one_level(rule, replicas):
    return Scheme(rule, replicas, radix_plan=(replicas,))


def in_order(gradients, rule, order, told=None, **options):
    """What each replica ends with where the replicas have these ranks, and the hall."""
    scheme = one_level(rule, len(order))
    return together(
        gradients, scheme, order=lambda _: order, told=lambda _: told or order, **options
    )


def assert_combined(results, gradients, rule, **options):
    expected.assert_combined(results, gradients, one_level(rule, len(gradients)), **options)


def rank_orders():
    """Every order for R = 2, 3; the worst and three at random for R = 4..7."""
    yield (0,)
    for replicas in (2, 3):
        yield from itertools.permutations(range(replicas))
    for replicas in range(4, 8):
        yield tuple(reversed(range(replicas)))
        for seed in range(3):
            yield tuple(int(i) for i in np.random.default_rng(seed).permutation(replicas))


@in_pairs(
    order=list(rank_orders()),
    rule=[rules.Adasum(), expected.ByReplica()],
    gathered_bytes=GATHERED_BYTES,
)
def test_adasum_in_every_rank_order(rule, order, gathered_bytes):
    gradients = gradients_of(MODEL, len(order))
    results, _ = in_order(gradients, rule, order, gathered_bytes=gathered_bytes)
    assert_combined(results, gradients, rule)


@in_pairs(
    rule=[rule() for rule in expected.COMBINE],
    order=[(0, 1), (1, 2, 0), (2, 3, 0, 1)],
    gathered_bytes=GATHERED_BYTES,
    alignment=[4, 64],
)
def test_every_rule(rule, order, gathered_bytes, alignment):
    gradients = gradients_of(MODEL, len(order))
    results, _ = in_order(gradients, rule, order, gathered_bytes=gathered_bytes)
    assert_combined(results, gradients, rule)


@in_pairs(
    order=[(1, 0), (2, 0, 1), (4, 1, 3, 0, 2)],
    bucket_bytes=[1, 100],
    gathered_bytes=GATHERED_BYTES,
)
def test_several_buckets(order, bucket_bytes, gathered_bytes):
    gradients = gradients_of(MODEL, len(order))
    results, _ = in_order(
        gradients, rules.Adasum(), order, bucket_bytes=bucket_bytes, gathered_bytes=gathered_bytes
    )
    assert_combined(results, gradients, rules.Adasum())


@pytest.mark.parametrize("order", [(1, 0), (1, 2, 0), (3, 0, 2, 1), (4, 2, 0, 5, 1, 3)])
def test_every_size(order, gathered_bytes):
    # From smaller than R to 1000; where R does not divide n, the last shard is padded.
    for size in (1, 2, 3, 5, 6, 8, 29, 1000):
        gradients = gradients_of([(size,)], len(order), seed=size)
        results, _ = in_order(gradients, rules.Adasum(), order, gathered_bytes=gathered_bytes)
        assert_combined(results, gradients, rules.Adasum())


@pytest.mark.parametrize("shapes", [[(1,)] * 5, [(2,), (1,), (4,)], [(40,), (1,)], [(1,), (40,)]])
@pytest.mark.parametrize("order", [(2, 0, 1), (6, 5, 4, 3, 2, 1, 0)])
def test_shards_that_hold_parts_of_several_variables_or_none(shapes, order):
    gradients = gradients_of(shapes, len(order))
    for rule in (rules.Adasum(), expected.ByNorm()):
        results, _ = in_order(gradients, rule, order)
        assert_combined(results, gradients, rule)


@in_pairs(dtype=expected.DTYPES, choice=BACKENDS, gathered_bytes=GATHERED_BYTES)
def test_every_dtype_on_both_backends(dtype, choice, monkeypatch, gathered_bytes):
    if choice == "custom" and not library.status().loaded:
        pytest.skip(f"the compiled op is not loaded: {library.status().reason}")
    monkeypatch.setenv(library.CHOICE_VARIABLE, choice)
    gradients = gradients_of(MODEL, 5, dtype)
    results, _ = in_order(gradients, rules.Adasum(), (3, 0, 4, 1, 2), gathered_bytes=gathered_bytes)
    assert_combined(results, gradients, rules.Adasum())


def test_dtypes_travel_in_buckets_of_their_own():
    halves, singles = gradients_of(MODEL, 3, tf.float16), gradients_of(MODEL, 3, seed=1)
    mixed = [half + single for half, single in zip(halves, singles, strict=True)]
    results, _ = in_order(mixed, rules.Adasum(), (2, 0, 1))
    assert_combined([own[: len(MODEL)] for own in results], halves, rules.Adasum())
    assert_combined([own[len(MODEL) :] for own in results], singles, rules.Adasum())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_spoils_its_variable_on_every_replica(bad, gathered_bytes):
    gradients = gradients_of([(50,), (60,), (70,)], 3)
    clean, _ = in_order(gradients, rules.Adasum(), (1, 2, 0), gathered_bytes=gathered_bytes)
    gradients[2][1][59] = bad  # one shard of three holds it; all have to know
    results, _ = in_order(gradients, rules.Adasum(), (1, 2, 0), gathered_bytes=gathered_bytes)
    for result in results:
        assert not np.isfinite(result[1]).any()
        assert result[0].tobytes() == clean[0][0].tobytes()
        assert result[2].tobytes() == clean[0][2].tobytes()


def test_identical_gradients_come_back_bit_for_bit(gathered_bytes):
    gradients = gradients_of(MODEL, 1) * 5
    results, _ = in_order(gradients, rules.Adasum(), (4, 2, 3, 0, 1), gathered_bytes=gathered_bytes)
    for result in results:
        for combined, own in zip(result, gradients[0], strict=True):
            assert combined.tobytes() == own.tobytes()


@pytest.mark.parametrize(
    ("true", "told"), [((0, 1, 2), (0, 2, 1)), ((2, 0, 1), (0, 1, 2)), ((0, 2, 1, 3), (0, 1, 2, 3))]
)
def test_a_wrong_rank_order_would_show(true, told):
    # On large variables of their own, so that nothing but the order of the tree goes wrong.
    gradients = gradients_of([(60,)], len(true))
    right, _ = in_order(gradients, rules.Adasum(), true)
    assert_combined(right, gradients, rules.Adasum())
    wrong, _ = in_order(gradients, rules.Adasum(), true, told=told)
    with pytest.raises(AssertionError, match="largest excess"):
        assert_combined(wrong, gradients, rules.Adasum())
    assert np.max(np.abs(wrong[0][0] - right[0][0])) > 1e-3


def test_the_bytes_that_travel(alignment, sums_by_a_ring):
    replicas, size, variables = 4, 1001, 3
    gradients = gradients_of([(size,)] * variables, replicas)
    _, hall = in_order(gradients, rules.Adasum(), (2, 0, 3, 1))
    in_bucket = variables * (size if alignment == 4 else 1008)
    width = -(-in_bucket // replicas)
    for calls in hall.calls:
        assert calls == [
            ("all_to_all", [replicas, width]),
            ("all_reduce", [variables, replicas * (replicas + 1) // 2]),
            ("all_gather", [1, width]),
        ]
    _, hall = in_order(gradients, rules.Adasum(), (2, 0, 3, 1), bucket_bytes=1)
    assert len(hall.calls[0]) == 3 * variables


@in_pairs(order=[(1, 0), (2, 0, 1), (3, 0, 2, 1)], piece_bytes=[40, 400, 1000], alignment=[4, 64])
def test_a_large_bucket_goes_in_pieces(order, piece_bytes, alignment, monkeypatch, sums_by_a_ring):
    monkeypatch.setattr("tf_adasum.aggregation.buckets.PIECE_BYTES", piece_bytes)
    gradients = gradients_of([(7,), (500,), (3,), (90,)], len(order))
    results, hall = in_order(gradients, rules.Adasum(), order)
    assert_combined(results, gradients, rules.Adasum())
    bytes_in_bucket = 4 * (600 if alignment == 4 else 16 + 512 + 16 + 96)
    pieces = round(bytes_in_bucket / piece_bytes)
    for calls in hall.calls:
        kinds = ["all_to_all"] * pieces + ["all_reduce"] + ["all_gather"] * pieces
        assert [kind for kind, _ in calls] == kinds


def test_a_small_bucket_takes_one_round():
    """Up to and with `gathered_bytes` of rows; here of three buckets, of 400, 800 and 400 bytes."""
    gradients = gradients_of([(100,), (200,), (100,)], 3)
    for limit, rounds in ((3 * 400 - 1, 9), (3 * 400, 5), (3 * 800 - 1, 5), (3 * 800, 3)):
        _, hall = in_order(
            gradients, rules.Adasum(), (1, 2, 0), bucket_bytes=1, gathered_bytes=limit
        )
        for calls in hall.calls:
            assert len(calls) == rounds


# ---- in pieces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gathered_sum_bytes", [0, 2**20])
def test_gram_matrices_are_added_up_in_full(gathered_sum_bytes, monkeypatch):
    monkeypatch.setattr("tf_adasum.aggregation.groups.GATHERED_SUM_BYTES", gathered_sum_bytes)
    random = np.random.default_rng(0)
    halves = [random.standard_normal([2, 3, 3]) for _ in range(3)]
    grams = [half + half.swapaxes(1, 2) for half in halves]
    hall, order = Hall(3), [2, 0, 1]

    def complete(replica):
        group = CollectiveGroup(FakeCollectives(hall, order, replica), order, replica)
        level = Shards(rules.Adasum(), column=group, block=group)
        return level.complete(tf.constant(grams[replica])).numpy()

    for result in in_turns(hall, complete):
        assert result.tobytes() == ((grams[2] + grams[0]) + grams[1]).tobytes()


def test_local_exchange_exchanges_nothing():
    (bucket,) = buckets.plan([tf.zeros([3])])
    rule = expected.ByReplica()
    plan = LocalExchange(Scheme(rule, 2)).plan(bucket, is_whole=False)
    gradients = [[tf.constant([1.0, 2.0, 3.0])], [tf.constant([4.0, 5.0, 6.0])]]
    ((buffers, segments),) = plan.split(gradients)
    (level,) = plan.levels
    rows, own = level.scatter(buffers, segments)
    assert rows[:, :3].numpy().tolist() == [[1, 2, 3], [4, 5, 6]] and own is bucket.segments
    gram = tf.ones([2, 2, 2], tf.float64)
    assert level.complete(gram) is gram and level.rule is rule
    assert level.gather(buffers[0]) is buffers[0]


@pytest.mark.parametrize(
    ("segments", "start", "width", "own"),
    [
        ([0, 12, 16, 23], 0, 8, [0, 8, 8, 8]),
        ([0, 12, 16, 23], 8, 8, [0, 4, 8, 8]),
        ([0, 12, 16, 23], 16, 8, [0, 0, 0, 8]),
        ([0, 5], 0, 5, [0, 5]),
        ([0, 1], 0, 1, [0, 1]),
        ([0, 1], 1, 1, [0, 1]),  # padding only
        ([0, 1, 2], 4, 2, [0, 0, 2]),  # padding only, to the last
        ([0, 3, 3, 5], 2, 2, [0, 1, 1, 2]),
        ([0, 0, 0, 4], 2, 2, [0, 0, 0, 2]),
        ([0, 4, 4], 2, 3, [0, 2, 3]),  # an empty last segment takes the padding
        ([0, 2**33, 2**34], 2**33 - 1, 4, [0, 1, 4]),
    ],
)
def test_shard_segments(segments, start, width, own):
    table = np.array(segments, np.int64)
    cut = shard_segments(table, start, width)
    assert cut.tolist() == own and cut.dtype == np.int64
    assert table.tolist() == segments, "the bucket keeps its own"


@pytest.mark.parametrize("replicas", range(1, 8))
def test_shards_cover_every_element_of_every_variable_once(replicas):
    random = np.random.default_rng(replicas)
    for _ in range(20):
        sizes = random.integers(0, 20, 6)
        segments = np.cumsum([0, *sizes, 1])
        width = -(-int(segments[-1]) // replicas)
        cuts = [shard_segments(segments, rank * width, width) for rank in range(replicas)]
        covered = np.sum([np.diff(cut) for cut in cuts], axis=0)
        assert covered[:-1].tolist() == sizes.tolist()
        assert covered[-1] == 1 + width * replicas - segments[-1], "the last one and the padding"
        assert all(cut[0] == 0 and cut[-1] == width for cut in cuts)
