"""Gradients that travel in 16 bits: rounded once on their way, and their combination once.

Shape letters: R replicas.
"""

import numpy as np
import pytest
import tensorflow as tf
from support import expected
from support.expected import gradients_of
from support.fake_collectives import exchanged, together

from tf_adasum.aggregation import Scheme, rules

MODEL = [(), (5, 7), (1001,), (0,), (17,)]
GATHERED = 2**40  # bytes: all buckets are gathered
WIRES = [tf.float16, tf.bfloat16]


@pytest.fixture(params=WIRES, ids=lambda dtype: dtype.name)
def wire(request):
    return request.param


@pytest.fixture(params=["shards", "gathered", "two levels"])
def way(request):
    """The plan of four replicas, and how many bytes are gathered."""
    return {"shards": ((4,), 0), "gathered": ((4,), GATHERED), "two levels": ((2, 2), 0)}[
        request.param
    ]


def rounded(gradients, dtype):
    """The gradients as they arrive; TensorFlow casts float64 to 16 bits through float32."""
    return [[g.astype(np.float32).astype(dtype.as_numpy_dtype) for g in own] for own in gradients]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rule", [rules.Adasum(), rules.Sum()], ids=repr)
def test_rounds_gradients_and_result_once(dtype, rule, wire, way):
    plan, gathered_bytes = way
    gradients = gradients_of(MODEL, 4, dtype)
    scheme = Scheme(rule, 4, radix_plan=plan, wire_dtype=wire)
    results, _ = together(gradients, scheme, gathered_bytes=gathered_bytes)
    expected.assert_same_bits(results)
    for actual, own in zip(results[0], gradients[0], strict=True):
        assert actual.dtype == own.dtype
        assert (actual.astype(wire.as_numpy_dtype).astype(own.dtype) == actual).all()
    # Beside the combination of the rounded gradients only the results of the levels are rounded.
    arrived = rounded(gradients, wire)
    for actual, wanted, own in zip(
        results[0], expected.combined(arrived, scheme), zip(*arrived, strict=True), strict=True
    ):
        expected.assert_close(actual, wanted, own, dtype=wire, levels=len(plan))
    # Beside that of the gradients as they were: u of each of them, with u half a unit in the last
    # place of the wire dtype, has the effect of a rounding on a level below the first.
    for actual, wanted, own in zip(
        results[0], expected.combined(gradients, scheme), zip(*gradients, strict=True), strict=True
    ):
        expected.assert_close(actual, wanted, own, dtype=wire, levels=1 + len(plan))


def test_differs_from_full_precision(wire):
    gradients = gradients_of([(1001,)], 4)
    scheme = Scheme(rules.Adasum(), 4, wire_dtype=wire)
    results, _ = together(gradients, scheme)
    with pytest.raises(AssertionError, match="largest excess"):
        expected.assert_combined(results, gradients, scheme)


@pytest.mark.parametrize("own_dtype", WIRES, ids=lambda dtype: dtype.name)
def test_leaves_gradients_of_16_bits_as_they_are(own_dtype, wire, way):
    plan, gathered_bytes = way
    gradients = gradients_of(MODEL, 4, own_dtype)
    with_wire, without = (
        together(
            gradients,
            Scheme(rules.Adasum(), 4, radix_plan=plan, wire_dtype=dtype),
            gathered_bytes=gathered_bytes,
        )[0]
        for dtype in (wire, None)
    )
    expected.assert_same_bits([*with_wire, *without])


def test_sends_half_the_bytes(wire, way, sums_by_a_ring):
    plan, gathered_bytes = way
    gradients = gradients_of([(960,)], 4)  # no padding in either dtype
    sent = {}
    for dtype in (wire, None):
        scheme = Scheme(rules.Adasum(), 4, radix_plan=plan, wire_dtype=dtype)
        _, hall = together(gradients, scheme, gathered_bytes=gathered_bytes)
        sent[dtype] = hall.sent[0]
    for kind in {"all_to_all", "all_gather"} & set(sent[None]):
        assert 2 * sent[wire][kind] == sent[None][kind]
    assert sent[wire].get("all_reduce") == sent[None].get("all_reduce"), "in full precision"


@pytest.mark.parametrize("rule", [rules.Adasum(), rules.AdaCons(), rules.Sum()], ids=repr)
@pytest.mark.parametrize("replica", [0, 3])
def test_what_float16_cannot_hold_never_becomes_finite(rule, replica):
    for plan, gathered_bytes in (((4,), 0), ((4,), GATHERED), ((2, 2), 0)):
        if len(plan) > 1 and not rule.works_in_levels:
            continue
        gradients = gradients_of([(50,)], 4)
        gradients[replica][0][7] = 1e5  # the largest number is 65504
        scheme = Scheme(rule, 4, radix_plan=plan, wire_dtype=tf.float16)
        results, _ = together(gradients, scheme, gathered_bytes=gathered_bytes)
        expected.assert_same_bits(results)
        assert not np.isfinite(results[0][0][7])
        if rule.needs_gram:
            assert not np.isfinite(results[0][0]).any()
        in_bfloat16 = Scheme(rule, 4, radix_plan=plan, wire_dtype=tf.bfloat16)
        results, _ = together(gradients, in_bfloat16, gathered_bytes=gathered_bytes)
        assert np.isfinite(results[0][0]).all()


def test_a_result_that_float16_cannot_hold_is_infinite(way):
    plan, gathered_bytes = way
    scheme = Scheme(rules.Sum(), 4, radix_plan=plan, wire_dtype=tf.float16)
    gradients = [[np.array([4e4, 1.0], np.float32)]] * 4
    results, _ = together(gradients, scheme, gathered_bytes=gathered_bytes)
    assert results[0][0].tolist() == [np.inf, 4.0]


@pytest.mark.parametrize("averaged", [1, 2])
def test_sparse_rows_are_rounded_on_their_way(wire, averaged):
    """Each row once, after its sum; the result is not sent, and not rounded to the wire dtype."""
    values = [own for (own,) in gradients_of([(3, 4)], 4)]
    gradients = [[tf.IndexedSlices(own, tf.constant([0, 1, 2]), [3, 4])] for own in values]
    scheme = Scheme(rules.Adasum(), 4, averaged, wire_dtype=wire)
    results, hall = exchanged(gradients, scheme)
    arrived = rounded([[own] for own in values], wire)
    rows = [[combined.values.numpy()] for (combined,) in results]
    expected.assert_same_bits(rows)
    (wanted,) = expected.combined(arrived, scheme)
    assert rows[0][0].dtype == np.float32
    expected.assert_close(rows[0][0], wanted, [own for (own,) in arrived])
    # 1 count and 3 indices of 8 bytes, 12 numbers of 2 bytes, to three others.
    assert hall.sent[0] == {"all_gather": 3 * (8 + 24 + 24)}


def test_a_sparse_row_that_float16_cannot_hold():
    gradients = [[tf.IndexedSlices([[x, 1.0], [2.0, 3.0]], [1, 4], [9, 2])] for x in (1.0, 1e5)]
    results, _ = exchanged(gradients, Scheme(rules.Adasum(), 2, wire_dtype=tf.float16))
    for (combined,) in results:
        assert not np.isfinite(combined.values).any()
