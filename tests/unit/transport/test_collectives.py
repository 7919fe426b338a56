"""Collectives over UCX between two workers that are in one process."""

import numpy as np
import pytest
import tensorflow as tf
from support import meshes

SIZES = [0, 1, 17, 18011, 1_000_003]
DTYPES = [tf.bool, tf.int8, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64]


@pytest.fixture(scope="module")
def workers():
    return meshes.pair()


def values_of(rank, shape, dtype):
    numbers = np.random.default_rng(rank).integers(-99, 99, shape)
    return tf.cast(tf.constant(numbers), dtype)


def assert_same(actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert actual.numpy().tobytes() == expected.numpy().tobytes()


def gather(workers, values):
    """Let each worker gather in one function of TensorFlow; return what each of them has."""

    @tf.function
    def of_all():
        return [own.all_gather(value) for own, value in zip(workers, values, strict=True)]

    return of_all()


@pytest.mark.parametrize("transports", ["posix,cma,tcp,self", "tcp,self"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_what_arrives(transports, dtype, request):
    workers = request.getfixturevalue("workers") if "cma" in transports else meshes.pair(transports)
    for size in SIZES if dtype == tf.float32 else SIZES[:4]:
        shards = [values_of(rank, [2, size], dtype) for rank in range(2)]

        @tf.function
        def exchange(shards):
            return [own.all_to_all(x) for own, x in zip(workers, shards, strict=True)]

        to_all, gathered = exchange(shards), gather(workers, shards)
        for rank in range(2):
            assert_same(to_all[rank], tf.stack([shards[0][rank], shards[1][rank]]))
            assert_same(gathered[rank], tf.concat(shards, axis=0))


def test_sums_are_the_same_bits_everywhere(workers):
    values = [tf.constant([1e8, 1.0, 3.0]), tf.constant([-1e8, 1e-9, np.nan])]

    @tf.function
    def add():
        return [own.all_reduce(value) for own, value in zip(workers, values, strict=True)]

    first, second = add()
    assert_same(first, second)
    np.testing.assert_array_equal(first, [0.0, 1.0, np.nan])


def test_many_at_once_are_not_mistaken_for_each_other(workers):
    """All have one shape, run in any order, and are under way together; and so in each call."""

    @tf.function
    def exchange(offset):
        results = []
        for number in range(50):
            for rank, own in enumerate(workers):
                value = tf.fill([2, 300], offset + number + 1000.0 * rank)
                results.append((number, own.all_to_all(value)))
        return [(tf.constant(number), result) for number, result in results]

    for call in range(5):
        for number, result in exchange(tf.constant(100.0 * call)):
            expected = 100.0 * call + float(number)
            np.testing.assert_array_equal(result[:, 0], [expected, expected + 1000])


def test_in_a_loop_of_the_graph(workers):
    @tf.function
    def loop():
        totals = [tf.constant([1.0]), tf.constant([2.0])]
        for _ in tf.range(20):
            gathered = [own.all_gather(x) for own, x in zip(workers, totals, strict=True)]
            totals = [tf.reduce_sum(each, keepdims=True) / 2 + 1 for each in gathered]
        return totals

    for total in loop():
        np.testing.assert_array_equal(total, [21.5])


def test_memory_is_used_again_only_when_nobody_holds_it(workers):
    held = [gather(workers, [tf.fill([1000], float(number))] * 2) for number in range(4)]
    for number, both in enumerate(held):
        for gathered in both:
            np.testing.assert_array_equal(gathered, number)


def test_workers_that_send_other_sizes(workers):
    with pytest.raises(tf.errors.AbortedError, match=r"Collective instance \d+ expected \d+ bytes"):
        gather(workers, [tf.zeros([5]), tf.zeros([3])])
