"""Buckets that are not packed, among workers in one process: the bits of those that are."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from support import meshes, scheme_oracle
from support.pace import PACE
from support.scheme_oracle import DTYPES, gradients_of

from tf_adasum.aggregation import Scheme, aggregate, rules
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.reduction_planner import CollectiveReductionPlanner
from tf_adasum.transport import library

# Odd sizes, gradients that are cut by shards, many in one shard, and one of several messages.
SHAPES = [[3], [700, 101], [], [1], [16], [33, 7], [5], [600_011], [2, 2], [129]]


def combination(replicas, scheme, fuses, bucket_bytes=None, first=0):
    """A function of some replicas' gradients that returns what each of them makes of all."""

    def groups(own, member):
        def group(stride, radix):
            assert (stride, radix) == (1, scheme.replicas)
            return CollectiveGroup(own, np.arange(radix), member, own if fuses else None)

        return group

    planners = [
        CollectiveReductionPlanner(scheme, groups(own, first + i)) for i, own in enumerate(replicas)
    ]

    @tf.function(autograph=False)
    def combine(gradients):
        return [
            aggregate([own], planner, bucket_bytes)
            for own, planner in zip(gradients, planners, strict=True)
        ]

    return combine


def assert_same_bits(actual, expected):
    for pair in zip(actual, expected, strict=True):
        arrays = [[gradient.numpy() for gradient in own] for own in pair]
        scheme_oracle.assert_same_bits(arrays)


@pytest.mark.parametrize(("workers", "devices"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_the_bits_of_packed_buckets(workers, devices, dtype):
    replicas = meshes.replicas(workers, devices)
    gradients = gradients_of(SHAPES, len(replicas), dtype)
    wire_dtypes = [None] if dtype.size == 2 else [None, tf.bfloat16, tf.float16]
    for wire_dtype in wire_dtypes:
        scheme = Scheme(rules.Adasum(), len(replicas), wire_dtype=wire_dtype)
        fused = combination(replicas, scheme, fuses=True)
        packed = combination(replicas, scheme, fuses=False)
        types = {op.type for op in fused.get_concrete_function(gradients).graph.get_operations()}
        assert {"TfAdasumUcxScatterGram", "TfAdasumUcxCombineGather"} < types
        assert "TfAdasumUcxAllToAll" not in types
        expected = packed(gradients)
        for _ in range(3):  # with other messages first
            assert_same_bits(fused(gradients), expected)


@pytest.mark.parametrize("rule", [rules.Sum(), rules.Adasum("model")], ids=repr)
def test_other_rules_and_several_pieces(rule, monkeypatch):
    monkeypatch.setattr("tf_adasum.aggregation.buckets.PIECE_BYTES", 500_000)
    replicas = meshes.replicas(3, 1)
    gradients = gradients_of(SHAPES, 3)
    for bucket_bytes in (None, 300_000):
        scheme = Scheme(rule, 3)
        fused = combination(replicas, scheme, fuses=True, bucket_bytes=bucket_bytes)
        packed = combination(replicas, scheme, fuses=False, bucket_bytes=bucket_bytes)
        assert_same_bits(fused(gradients), packed(gradients))


# ---- workers that do not come --------------------------------------------------------------------


@pytest.fixture(params=["fused", "a single collective"])
def waiting(request):
    """A new pair, and a function in which one of the two waits for the other."""
    replicas = meshes.pair()
    if request.param != "fused":
        return replicas, tf.function(lambda: replicas[0].all_gather(tf.zeros([1_000_000])))
    combine = combination(replicas[:1], Scheme(rules.Adasum(), 2), fuses=True)
    return replicas, lambda: combine(gradients_of(SHAPES, 1))


def test_an_abort_ends_what_waits_and_what_comes(waiting):
    _, wait = waiting
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(wait)
        try:
            time.sleep(2.0)
            assert not call.done()
        finally:  # the pool waits for the call
            aborted = time.monotonic()
            library.abort("worker 1 was lost")
        error = call.exception(10 * PACE)
    assert time.monotonic() - aborted < PACE
    assert isinstance(error, tf.errors.AbortedError)
    assert "Collective ops is aborted by: worker 1 was lost" in error.message
    with pytest.raises(tf.errors.AbortedError, match="worker 1 was lost"):
        wait()


def test_a_step_that_fails_does_not_wait_for_others(waiting):
    """As where one worker's own operations raise: and what it has left then disturbs nobody."""
    replicas, wait = waiting

    @tf.function
    def fail(number):
        combined = wait()
        tf.debugging.assert_less(number, 0)
        return combined

    start = time.monotonic()
    with pytest.raises(tf.errors.InvalidArgumentError, match="number"):
        fail(tf.constant(1))
    assert time.monotonic() - start < 30 * PACE
    replicas[1].next_key()  # of the call that the other one has not made
    for gathered in tf.function(lambda: [own.all_gather(tf.ones([10])) for own in replicas])():
        np.testing.assert_array_equal(gathered, np.ones(20))
