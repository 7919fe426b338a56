"""The exchange among replicas: R threads that really swap rows, against the NumPy oracle.

The collectives are a fake: what they do is TensorFlow's contract, nothing is computed for them.
Rank and replica are different things; see `CollectiveExchange`.

Shape letters: S segments, R replicas, n elements of a bucket, W of a shard.
"""

import itertools
import threading

import numpy as np
import oracle
import pytest
import tensorflow as tf

from tf_adasum.aggregation import Scheme, aggregate, buckets, rules
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.levels import Shards, shard_segments
from tf_adasum.ops import library

# Half a unit in the last place, for the one rounding of the result, and 1 % more because stock
# TensorFlow casts float64 to the 16-bit types through float32. For float64: a few units.
ROUNDING = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8, tf.float32: 2.0**-24, tf.float64: 2.0**-50}
SMALLEST = {tf.float16: 2.0**-24, tf.bfloat16: 2.0**-126, tf.float32: 2.0**-126, tf.float64: 0.0}
# Of the float64 coefficients, as a part of Σ‖g_i‖: inner products carry 1e-16·√n, the tree
# amplifies that where gradients nearly cancel; the seeds give nothing closer than a hundredth.
COEFFICIENT_TOLERANCE = 1e-11

SECONDS = 30  # a thread that waits longer for the others has been left alone


class Hall:
    """Where the replicas of a test meet."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.calls = [[] for _ in range(replicas)]
        self.barrier = threading.Barrier(replicas, timeout=SECONDS)
        self._slots = [None] * replicas

    def swap(self, rank, what, value):
        """Returns what every rank brought, in the order of the ranks."""
        self.calls[rank].append((what, value.shape))
        self._slots[rank] = (what, value.shape, value.dtype, value.numpy())
        self.barrier.wait()
        brought = list(self._slots)
        self.barrier.wait()
        assert len({slot[:3] for slot in brought}) == 1, "all call the same collective alike"
        return [slot[3] for slot in brought]


class FakeCollectives:
    """The three collectives of the replica at a rank."""

    def __init__(self, hall, rank):
        self._hall, self._rank = hall, rank

    def all_to_all(self, shards):
        assert shards.shape[0] == self._hall.replicas
        brought = self._hall.swap(self._rank, "all_to_all", shards)
        return tf.constant(np.stack([rows[self._rank] for rows in brought]))

    def all_reduce(self, value):
        brought = self._hall.swap(self._rank, "all_reduce", value)
        return tf.constant(sum(brought[1:], brought[0]))

    def all_gather(self, value):
        return tf.constant(np.concatenate(self._hall.swap(self._rank, "all_gather", value)))


@pytest.fixture(autouse=True)
def segments_without_gaps(monkeypatch):
    """So that the shards of these small models hold parts of variables, and of several."""
    monkeypatch.setattr(buckets, "ALIGNED_BYTES", 4)


@pytest.fixture(params=[4, 64], ids=["unaligned", "aligned"])
def alignment(request, segments_without_gaps, monkeypatch):
    """Without gaps, and as segments are."""
    monkeypatch.setattr(buckets, "ALIGNED_BYTES", request.param)
    return request.param


@pytest.fixture(params=[0, 2**40], ids=["all-to-all", "all-gather"])
def gathered_bytes(request):
    """Which of the two plans is taken."""
    return request.param


def together(gradients, rule, replica_of_rank, told=None, bucket_bytes=None, gathered_bytes=0):
    """What each replica ends with, and the hall; `told` is the order that the exchange is given."""
    hall = Hall(len(gradients))
    results, errors = [None] * len(gradients), []

    def take_part(rank, replica):
        try:
            scheme = Scheme(rule, len(gradients), radix_plan=(len(gradients),))
            exchange = scheme.collective_exchange(
                lambda stride, radix: CollectiveGroup(
                    FakeCollectives(hall, rank), told or replica_of_rank, replica
                ),
                gathered_bytes,
            )
            own = [tf.constant(gradient) for gradient in gradients[replica]]
            combined = aggregate([own], exchange, bucket_bytes)
            results[replica] = [gradient.numpy() for gradient in combined]
        except Exception as error:
            errors.append(error)
            hall.barrier.abort()

    threads = [
        threading.Thread(target=take_part, args=place) for place in enumerate(replica_of_rank)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    # The others' broken barriers follow from the first error.
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    assert not any(thread.is_alive() for thread in threads)
    return results, hall


class ByReplica(rules.AggregationRule):
    """Coefficients 1, 2, 3, … of the replicas: shows in which order a rule sees them."""

    def coefficients(self, gram):
        return tf.ones_like(gram[:, 0, :]) * tf.range(1, gram.shape[-1] + 1, dtype=tf.float64)


class ByNorm(rules.AggregationRule):
    """The squared norms as coefficients."""

    def coefficients(self, gram):
        return tf.linalg.diag_part(gram)


def weighted(weigh):
    def expected(own):
        return sum(weigh(i, g) * g for i, g in enumerate(g.astype(np.float64) for g in own))

    return expected


EXPECTED = {
    rules.Adasum: oracle.adasum,
    rules.Sum: weighted(lambda i, g: 1),
    rules.Mean: lambda own: np.mean([g.astype(np.float64) for g in own], axis=0),
    ByReplica: weighted(lambda i, g: i + 1),
    ByNorm: weighted(lambda i, g: np.sum(g * g)),
}


def gradients_of(shapes, replicas, dtype=tf.float32, seed=0):
    """For each replica the gradients of all variables, with a part in common."""
    random = np.random.default_rng(seed)
    common = [random.standard_normal(shape) for shape in shapes]
    return [
        [
            np.asarray(own + random.standard_normal(own.shape)).astype(dtype.as_numpy_dtype)
            for own in common
        ]
        for _ in range(replicas)
    ]


def assert_combined(results, gradients, rule, dtype=tf.float32):
    """All replicas hold the same bits, and these are the oracle's result in replica order."""
    for variable, combined in enumerate(results[0]):
        for result in results[1:]:
            assert result[variable].tobytes() == combined.tobytes()
        own = [gradient[variable] for gradient in gradients]
        expected = EXPECTED[type(rule)](own)
        assert combined.shape == own[0].shape and combined.dtype == own[0].dtype
        of_gradients = sum(np.linalg.norm(g.astype(np.float64).ravel()) for g in own)
        allowed = 1.01 * ROUNDING[dtype] * np.abs(expected) + SMALLEST[dtype]
        allowed += (
            COEFFICIENT_TOLERANCE * max(1, np.max(np.abs(expected), initial=0)) * of_gradients
        )
        error = np.abs(combined.astype(np.float64) - expected)
        assert (error <= allowed).all(), f"largest excess {np.max(error - allowed)}"


def rank_orders():
    """Every order for R = 2, 3; the worst and three at random for R = 4..7."""
    yield (0,)
    for replicas in (2, 3):
        yield from itertools.permutations(range(replicas))
    for replicas in range(4, 8):
        yield tuple(reversed(range(replicas)))
        for seed in range(3):
            yield tuple(int(i) for i in np.random.default_rng(seed).permutation(replicas))


MODEL = [(), (5, 7), (0,), (1000,), (1,), (3, 0), (17,)]


@pytest.mark.parametrize("order", list(rank_orders()), ids=lambda order: "".join(map(str, order)))
@pytest.mark.parametrize("rule", [rules.Adasum(), ByReplica()], ids=repr)
def test_adasum_in_every_rank_order(rule, order, gathered_bytes):
    gradients = gradients_of(MODEL, len(order))
    results, _ = together(gradients, rule, order, gathered_bytes=gathered_bytes)
    assert_combined(results, gradients, rule)


@pytest.mark.parametrize("order", [(0, 1), (1, 2, 0), (2, 3, 0, 1)])
@pytest.mark.parametrize("rule", [rule() for rule in EXPECTED], ids=repr)
def test_every_rule(rule, order, gathered_bytes, alignment):
    gradients = gradients_of(MODEL, len(order))
    results, _ = together(gradients, rule, order, gathered_bytes=gathered_bytes)
    assert_combined(results, gradients, rule)


@pytest.mark.parametrize("bucket_bytes", [1, 100])
@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (4, 1, 3, 0, 2)])
def test_several_buckets(order, bucket_bytes, gathered_bytes):
    gradients = gradients_of(MODEL, len(order))
    results, _ = together(
        gradients, rules.Adasum(), order, bucket_bytes=bucket_bytes, gathered_bytes=gathered_bytes
    )
    assert_combined(results, gradients, rules.Adasum())


@pytest.mark.parametrize("order", [(1, 0), (1, 2, 0), (3, 0, 2, 1), (4, 2, 0, 5, 1, 3)])
def test_every_size(order, gathered_bytes):
    # From smaller than R to 1000; where R does not divide n, the last shard is padded.
    for size in (1, 2, 3, 5, 6, 8, 29, 1000):
        gradients = gradients_of([(size,)], len(order), seed=size)
        results, _ = together(gradients, rules.Adasum(), order, gathered_bytes=gathered_bytes)
        assert_combined(results, gradients, rules.Adasum())


@pytest.mark.parametrize("shapes", [[(1,)] * 5, [(2,), (1,), (4,)], [(40,), (1,)], [(1,), (40,)]])
@pytest.mark.parametrize("order", [(2, 0, 1), (6, 5, 4, 3, 2, 1, 0)])
def test_shards_that_hold_parts_of_several_variables_or_none(shapes, order):
    gradients = gradients_of(shapes, len(order))
    for rule in (rules.Adasum(), ByNorm()):
        results, _ = together(gradients, rule, order)
        assert_combined(results, gradients, rule)


@pytest.mark.parametrize("choice", ["custom", "tensorflow"])
@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=lambda dtype: dtype.name
)
def test_every_dtype_on_both_backends(dtype, choice, monkeypatch, gathered_bytes):
    if choice == "custom" and not library.status().loaded:
        pytest.skip(f"the compiled op is not loaded: {library.status().reason}")
    monkeypatch.setenv(library.CHOICE_VARIABLE, choice)
    gradients = gradients_of(MODEL, 5, dtype)
    results, _ = together(gradients, rules.Adasum(), (3, 0, 4, 1, 2), gathered_bytes=gathered_bytes)
    assert_combined(results, gradients, rules.Adasum(), dtype)


def test_dtypes_travel_in_buckets_of_their_own():
    halves, singles = gradients_of(MODEL, 3, tf.float16), gradients_of(MODEL, 3, seed=1)
    mixed = [half + single for half, single in zip(halves, singles, strict=True)]
    results, _ = together(mixed, rules.Adasum(), (2, 0, 1))
    assert_combined([own[: len(MODEL)] for own in results], halves, rules.Adasum(), tf.float16)
    assert_combined([own[len(MODEL) :] for own in results], singles, rules.Adasum())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_spoils_its_variable_on_every_replica(bad, gathered_bytes):
    gradients = gradients_of([(50,), (60,), (70,)], 3)
    clean, _ = together(gradients, rules.Adasum(), (1, 2, 0), gathered_bytes=gathered_bytes)
    gradients[2][1][59] = bad  # one shard of three holds it; all have to know
    results, _ = together(gradients, rules.Adasum(), (1, 2, 0), gathered_bytes=gathered_bytes)
    for result in results:
        assert not np.isfinite(result[1]).any()
        assert result[0].tobytes() == clean[0][0].tobytes()
        assert result[2].tobytes() == clean[0][2].tobytes()


def test_identical_gradients_come_back_bit_for_bit(gathered_bytes):
    gradients = gradients_of(MODEL, 1) * 5
    results, _ = together(gradients, rules.Adasum(), (4, 2, 3, 0, 1), gathered_bytes=gathered_bytes)
    for result in results:
        for combined, own in zip(result, gradients[0], strict=True):
            assert combined.tobytes() == own.tobytes()


@pytest.mark.parametrize(
    ("true", "told"), [((0, 1, 2), (0, 2, 1)), ((2, 0, 1), (0, 1, 2)), ((0, 2, 1, 3), (0, 1, 2, 3))]
)
def test_a_wrong_rank_order_would_show(true, told):
    # On large variables of their own, so that nothing but the order of the tree goes wrong.
    gradients = gradients_of([(60,)], len(true))
    right, _ = together(gradients, rules.Adasum(), true)
    assert_combined(right, gradients, rules.Adasum())
    wrong, _ = together(gradients, rules.Adasum(), true, told=told)
    with pytest.raises(AssertionError, match="largest excess"):
        assert_combined(wrong, gradients, rules.Adasum())
    assert np.max(np.abs(wrong[0][0] - right[0][0])) > 1e-3


def test_the_bytes_that_travel(alignment):
    replicas, size, variables = 4, 1001, 3
    gradients = gradients_of([(size,)] * variables, replicas)
    _, hall = together(gradients, rules.Adasum(), (2, 0, 3, 1))
    in_bucket = variables * (size if alignment == 4 else 1008)
    width = -(-in_bucket // replicas)
    for calls in hall.calls:
        assert calls == [
            ("all_to_all", [replicas, width]),
            ("all_reduce", [variables, replicas * (replicas + 1) // 2]),
            ("all_gather", [1, width]),
        ]
    _, hall = together(gradients, rules.Adasum(), (2, 0, 3, 1), bucket_bytes=1)
    assert len(hall.calls[0]) == 3 * variables


@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (3, 0, 2, 1)])
@pytest.mark.parametrize("piece_bytes", [40, 400, 1000])
def test_a_large_bucket_goes_in_pieces(order, piece_bytes, alignment, monkeypatch):
    monkeypatch.setattr("tf_adasum.aggregation.exchange.PIECE_BYTES", piece_bytes)
    gradients = gradients_of([(7,), (500,), (3,), (90,)], len(order))
    results, hall = together(gradients, rules.Adasum(), order)
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
        _, hall = together(
            gradients, rules.Adasum(), (1, 2, 0), bucket_bytes=1, gathered_bytes=limit
        )
        for calls in hall.calls:
            assert len(calls) == rounds


# ---- in pieces ---------------------------------------------------------------------------------


def test_gram_matrices_are_added_up_in_full():
    random = np.random.default_rng(0)
    halves = [random.standard_normal([2, 3, 3]) for _ in range(3)]
    grams = [half + half.swapaxes(1, 2) for half in halves]
    hall, summed = Hall(3), [None] * 3

    def reduce(rank):
        group = CollectiveGroup(FakeCollectives(hall, rank), [2, 0, 1], [2, 0, 1][rank])
        level = Shards(rules.Adasum(), column=group, block=group)
        summed[rank] = level.complete(tf.constant(grams[rank])).numpy()

    threads = [threading.Thread(target=reduce, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    for result in summed:
        assert result.tobytes() == ((grams[0] + grams[1]) + grams[2]).tobytes()


def test_local_exchange_exchanges_nothing():
    (bucket,) = buckets.plan([tf.zeros([3])])
    rule = ByReplica()
    plan = Scheme(rule, 2).local_exchange().plan(bucket, is_whole=False)
    gradients = [[tf.constant([1.0, 2.0, 3.0])], [tf.constant([4.0, 5.0, 6.0])]]
    ((buffers, segments),) = plan.split(gradients)
    (level,) = plan.levels
    rows, own = level.scatter(buffers, segments)
    assert rows[:, :3].numpy().tolist() == [[1, 2, 3], [4, 5, 6]] and own is bucket.segments
    gram = tf.ones([2, 2, 2], tf.float64)
    assert level.complete(gram) is gram and level.rule is rule
    assert level.gather(buffers[0]) is buffers[0]


@pytest.mark.parametrize(
    ("segments", "start", "width", "expected"),
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
def test_shard_segments(segments, start, width, expected):
    table = np.array(segments, np.int64)
    cut = shard_segments(table, start, width)
    assert cut.tolist() == expected and cut.dtype == np.int64
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
